"""No proxy: the clients ask a decode engine themselves. What the load and the engines cost."""

from tests.bench.targets.target import Target


class Direct(Target):
    name = "direct"
    has_prefill_leg = False

    def __init__(self, decode_address: str) -> None:
        self.address = decode_address

    def processes(self) -> dict[int, str]:
        return {}

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        """The engine is not ours to end."""
