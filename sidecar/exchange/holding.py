"""The slots that one exchange holds, as the control process and Envoy are told of them.

Invariant: what a `take` took is given back by one `give_back`; a later `take` replaces the earlier.
"""

import msgspec

from sidecar.exchange.answers import Answers
from sidecar.exchange.asked import Asked
from sidecar.exchange.effects import Note
from sidecar.exchange.reasons import Reason
from sidecar.exchange.receipt import placed_record, trail
from sidecar.exchange.records import Moved, Placed, Replied, Spare
from sidecar.routing.instance import Role
from sidecar.routing.slots import Placement, Target


class Holding:
    def __init__(self, worker: int) -> None:
        self.is_open = False
        self.record: Placed | None = None
        """the last that was taken, given back or not"""
        self._worker = worker

    def take_pair(
        self,
        answers: Answers,
        asked: Asked,
        placement: Placement,
        transfer_id: str,
        *,
        is_late: bool = False,
    ) -> Note:
        """`is_late`: WRITE in which decode is asked after prefill has answered."""
        pair = (placement.mode, placement.prefill, placement.decode)
        record = placed_record(answers, self._worker, asked, *pair)
        return self._take(
            msgspec.structs.replace(record, transfer_id=transfer_id, is_late_decode=is_late)
        )

    def take_one(self, answers: Answers, asked: Asked, target: Target) -> Note:
        """One slot for the whole request."""
        is_prefill = target.member.instance.role is Role.PREFILL
        ends = (target, None) if is_prefill else (None, target)
        return self._take(placed_record(answers, self._worker, asked, None, *ends))

    def _take(self, record: Placed) -> Note:
        self.record = record
        self.is_open = True
        return Note(record)

    def move(self, decode: Target) -> Note:
        """To another decode slot."""
        assert self.record is not None
        self.record = msgspec.structs.replace(self.record, decode=decode.slot)
        return Note(Moved(exchange=self.record.exchange, decode=decode.slot))

    def metadata(self, answers: Answers) -> dict[str, str]:
        """For Envoy's access log: whose exchange it is, and what it holds."""
        assert self.record is not None
        return answers.metadata | answers.route | {"rec": trail(self.record)}

    def give_back(
        self,
        reason: Reason | None,
        *,
        is_handed_over: bool,
        client_phase: str,
        is_prefill_running: bool,
        spare: Target | None,
    ) -> list[Note]:
        """Nothing if nothing is held."""
        if not self.is_open or self.record is None:
            return []
        self.is_open = False
        replied = Replied(
            exchange=self.record.exchange,
            is_handed_over=is_handed_over,
            reason=reason,
            phase=client_phase,
            is_prefill_running=is_prefill_running,
            spare=None if spare is None else Spare(spare.slot, spare.member.endpoint),
        )
        return [Note(replied)]
