"""What a speech model would write: words that follow from the file's bytes, and the fields."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal

from sidecar.sim.answer import DONE, data_event, dump, usage_of
from sidecar.sim.api_error import ApiError, BrokenRule, InvalidBody
from sidecar.sim.core import Core
from sidecar.sim.models import Models, ServedModel
from sidecar.sim.words import words_of

Task = Literal["transcribe", "translate"]
OBJECT: Mapping[Task, str] = {"transcribe": "transcription.chunk", "translate": "translation.chunk"}
MOST_FILE_BYTES = 25 << 20  # vLLM's VLLM_MAX_AUDIO_CLIP_FILESIZE_MB
WORDS = 12  # where no limit is given
BYTES_A_SECOND = 32_000  # 16 kHz, 16 bits
_SHAPING = ("language", "to_language", "prompt", "hotwords", "temperature", "seed")
"""Fields that change the words."""
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """A request that vLLM would run."""

    task: Task
    model: ServedModel
    file: bytes
    shaping: tuple[str, ...]
    max_tokens: int
    is_streamed: bool
    includes_usage: bool
    xargs: Mapping[str, Any]

    def words(self, salt: bytes = b"") -> Iterator[str]:
        """The transcript; `salt` is empty but on an engine that answers garbage."""
        what = json.dumps([self.task, self.model.name, *self.shaping]).encode()
        key = blake2b(what + salt + b"\0" + self.file).digest()
        return islice(words_of(key), self.max_tokens)

    def whole(self, text: str) -> bytes:
        """The answer that is not streamed: JSON, also for `text`, as in vLLM 0.33."""
        if self.task == "translate":
            return dump({"text": text})
        seconds = -(-len(self.file) // BYTES_A_SECOND)
        return dump({"text": text, "usage": {"type": "duration", "seconds": seconds}})

    def events(self, request_id: str, words: Iterator[str]) -> Iterator[bytes]:
        """The streamed answer: an event a word, and one for its end."""
        head = {
            "id": request_id,
            "object": OBJECT[self.task],
            "created": int(time.time()),
            "model": self.model.name,
        }
        for word in words:
            yield data_event({**head, "choices": [{"delta": {"content": word}}]})
        end = {"delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}
        yield data_event({**head, "choices": [end]})
        if self.includes_usage:
            usage = usage_of(len(self.file), self.max_tokens)
            yield data_event({**head, "choices": [], "usage": usage})
        yield DONE


def read_audio_request(task: Task, form: Mapping[str, Any], models: Models) -> AudioRequest:
    """The checked request of a form; raises ApiError, in vLLM's order."""
    file = form.get("file")
    if isinstance(file, str):
        raise ApiError(422, "Expected 'file' to be a file-like object, not 'str'.")
    if file is None:
        raise InvalidBody("file", "missing", "Field required", {**form})
    is_streamed = _truth(form, "stream")
    includes_usage = _truth(form, "stream_include_usage")
    if includes_usage and not is_streamed:
        problem = "Stream options can only be defined when `stream=True`."
        raise BrokenRule(problem, "stream_include_usage")
    xargs = _read_xargs(form)
    _check_format(form)
    max_tokens = _whole(form, "max_completion_tokens", WORDS)
    if len(file) > MOST_FILE_BYTES:
        raise BrokenRule("Maximum file size exceeded", "audio_filesize_mb")
    name = form.get("model")
    if isinstance(name, bytes):
        raise InvalidBody("model", "string_type", "Input should be a valid string")
    model = models.find(name)
    if form.get("response_format", "json") not in ("", "json", "text"):
        formats = "`text`, `json`, `verbose_json` or `diarized_json`"
        raise ApiError(400, f"Currently only support response_format: {formats}")
    if not file:
        raise ApiError(400, "Invalid or unsupported audio file.")
    return AudioRequest(
        task=task,
        model=model,
        file=file,
        shaping=tuple(str(form.get(field, "")) for field in _SHAPING),
        max_tokens=max_tokens,
        is_streamed=is_streamed,
        includes_usage=includes_usage,
        xargs=xargs,
    )


def suffer_xargs(asked: AudioRequest, core: Core) -> None:
    """They become sampling parameters, where KV parameters lie too: text there is no mapping to the
    scheduler, and ends the engine. Raises EngineDead."""
    if "kv_transfer_params" in asked.xargs:
        raise core.die("kv_params_in_xargs")


def _read_xargs(form: Mapping[str, Any]) -> Mapping[str, Any]:
    text = form.get("vllm_xargs") or "null"
    try:
        xargs = json.loads(text)
    except ValueError as error:
        problem = f"Failed to parse vllm_xargs. Must be valid JSON: {error}"
        raise BrokenRule(problem, "vllm_xargs") from None
    if xargs is not None and not isinstance(xargs, dict):
        raise InvalidBody("vllm_xargs", "dict_type", "Input should be a valid dictionary", xargs)
    return xargs or {}


def _check_format(form: Mapping[str, Any]) -> None:
    given = form.get("response_format") or "json"
    if given not in _FORMATS:
        raise InvalidBody("response_format", "literal_error", f"Input should be in {_FORMATS}")


def _truth(form: Mapping[str, Any], name: str) -> bool:
    given = str(form.get(name) or "false").lower()
    if given not in ("true", "false", "1", "0", "on", "off", "yes", "no"):
        raise InvalidBody(name, "bool_parsing", "Input should be a valid boolean", given)
    return given in ("true", "1", "on", "yes")


def _whole(form: Mapping[str, Any], name: str, default: int) -> int:
    given = form.get(name) or str(default)
    if not isinstance(given, str) or not given.isdecimal() or not 0 < int(given) < 1 << 20:
        raise InvalidBody(name, "int_parsing", "Input should be a valid integer", str(given))
    return int(given)
