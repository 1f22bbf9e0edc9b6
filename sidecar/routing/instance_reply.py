"""What one instance answered to a request that went to all of them."""

import msgspec


class InstanceReply(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    """its short name"""
    address: str
    role: str
    status: int | None
    """None: it gave no answer, and `body` says why"""
    body: str

    @property
    def is_good(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    def shown(self, *, with_address: bool) -> dict[str, object]:
        """As JSON has it."""
        values: dict[str, object] = msgspec.structs.asdict(self)
        if not with_address:
            del values["address"]
        return values
