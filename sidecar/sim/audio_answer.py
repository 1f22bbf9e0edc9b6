"""What a speech model answers, as vLLM 0.33 shapes it: words that follow from the file's bytes and
the fields."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice

from sidecar.sim.answer import data_event, dump, usage_and_done, usage_of
from sidecar.sim.audio_request import AudioRequest, Task
from sidecar.sim.words import words_of

OBJECT: Mapping[Task, str] = {"transcribe": "transcription.chunk", "translate": "translation.chunk"}
BYTES_A_SECOND = 32_000  # 16 kHz, 16 bits


class AudioAnswer:
    """Serialises one request's answer. `salt` is empty but on an engine that answers garbage."""

    def __init__(self, asked: AudioRequest, salt: bytes = b"") -> None:
        self._asked = asked
        self._salt = salt

    def whole(self) -> bytes:
        """The answer that is not streamed: JSON, also for `text`, as in vLLM 0.33."""
        text = "".join(self._words())
        if self._asked.task == "translate":
            return dump({"text": text})
        seconds = -(-len(self._asked.file) // BYTES_A_SECOND)
        return dump({"text": text, "usage": {"type": "duration", "seconds": seconds}})

    def events(self, request_id: str, created: int) -> Iterator[bytes]:
        """The streamed answer: an event a word, and those of its end. `created` is Unix seconds."""
        asked = self._asked
        head = {
            "id": request_id,
            "object": OBJECT[asked.task],
            "created": created,
            "model": asked.model.name,
        }
        for word in self._words():
            yield data_event({**head, "choices": [{"delta": {"content": word}}]})
        end = {"delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}
        yield data_event({**head, "choices": [end]})
        usage = usage_of(len(asked.file), asked.max_tokens)
        yield from usage_and_done(head, {"usage": usage} if asked.includes_usage else None)

    def _words(self) -> Iterator[str]:
        """The transcript."""
        asked = self._asked
        what = json.dumps([asked.task, asked.model.name, *asked.shaping]).encode()
        key = blake2b(what + self._salt + b"\0" + asked.file).digest()
        return islice(words_of(key), asked.max_tokens)
