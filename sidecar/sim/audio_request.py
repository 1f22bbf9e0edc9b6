"""One upload to a speech model as a checked value; what vLLM refuses with 4xx is refused here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.sim.api_error import ApiError, BrokenRule, InvalidBody
from sidecar.sim.models import Models, ServedModel

Task = Literal["transcribe", "translate"]
MOST_FILE_BYTES = 25 << 20  # vLLM's VLLM_MAX_AUDIO_CLIP_FILESIZE_MB
WORDS = 12  # where no limit is given
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
