"""The real router between a raw client and two scripted engines, a prefill and a decode one."""

import json
from typing import Any

from tests.e2e.stack import Stack, until
from tests.requests.raw_http import Answer, Client, ask, request
from tests.requests.scripted_engine import MODEL, Got, Script, ScriptedEngine

BODY_LIMIT = 200_000
UPLOAD_LIMIT_S = 3.0
JSON = "Content-Type: application/json"
PATH = {"pd": "/v1/completions", "aggregated": "/v1/completions", "single": "/tokenize"}
"""By way: through both engines; whole by one after its body was read; by one at the headers."""
WAYS = tuple(PATH)


def prompt(way: str = "pd", **fields: Any) -> bytes:
    """A body that goes that way."""
    many = {"n": 2} if way == "aggregated" else {}
    return json.dumps({"model": MODEL, "prompt": "Hello", **many, **fields}).encode()


class Wired:
    def __init__(self, mode: str = "READ", **config: Any) -> None:
        self.prefill = ScriptedEngine("prefill", mode)
        self.decode = ScriptedEngine("decode", mode)
        settings: dict[str, Any] = {
            "instances": [self.prefill.static, self.decode.static],
            "probe": {"interval_s": 0.5},
            "ejection": {"failures": 1000},
            "request": {"upload_timeout_s": UPLOAD_LIMIT_S},
            "tuning": {"http": {"max_body_bytes": BODY_LIMIT}},
        }
        self.stack = Stack(settings | config, workers=1)
        try:
            self.stack.start()
            wanted = {engine.address for engine in self.engines}
            until(lambda: wanted <= self.stack.placeable(), "both engines are placeable")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        print(self.stack.log())  # pytest shows it with a failure only
        self.stack.close()
        for engine in self.engines:
            engine.close()

    @property
    def url(self) -> str:
        return self.stack.url

    @property
    def engines(self) -> tuple[ScriptedEngine, ScriptedEngine]:
        return self.prefill, self.decode

    def reset(self) -> None:
        for engine in self.engines:
            engine.reset()

    def serving(self, way: str) -> ScriptedEngine:
        """Whose answer the client gets."""
        return self.decode if way == "pd" else self.prefill

    def script(self, way: str, script: Script) -> None:
        self.serving(way).script = script

    @property
    def got(self) -> list[Got]:
        """What reached any engine, prefill's first."""
        return [*self.prefill.got, *self.decode.got]

    def client(self, limit_s: float = 10.0) -> Client:
        return Client.of(self.url, limit_s)

    def ask(self, data: bytes) -> Answer:
        return ask(self.url, data)

    def post(self, way: str = "pd", *headers: str, body: bytes | None = None) -> Answer:
        """A good request of that way, with headers or a body of the test's."""
        sent = prompt(way) if body is None else body
        return self.ask(request(f"POST {PATH[way]}", JSON, *headers, body=sent))

    def assert_serves(self) -> None:
        """The next good request is served, by both engines."""
        self.reset()
        answer = self.post("pd")
        assert (answer.status, answer.body) == (200, b'{"served": true}')
        assert [len(engine.got) for engine in self.engines] == [1, 1]
