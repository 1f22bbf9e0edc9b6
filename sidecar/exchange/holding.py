"""The slots that one exchange holds, as the control process and Envoy are told of them.

Invariant: what `take` took is given back by one `give_back`; a later `take` replaces the earlier.
"""

import msgspec

from sidecar.exchange.answers import Answers
from sidecar.exchange.effects import Note
from sidecar.exchange.intake import Request
from sidecar.exchange.reasons import Reason
from sidecar.exchange.receipt import placed_record, receipt, trail
from sidecar.exchange.records import Moved, Placed, Replied, Spare
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.slots import Placement, Target
from sidecar.wire.paths import Api


class Holding:
    def __init__(self, worker: int, limits: Limits) -> None:
        self.is_open = False
        self.record: Placed | None = None
        """the last that was taken, given back or not"""
        self.spare: Target | None = None
        self._worker = worker
        self._limits = limits

    def take_pair(
        self, answers: Answers, request: Request, placement: Placement, transfer_id: str
    ) -> Note:
        note = self._take(
            answers, request.api, request, placement.mode, placement.prefill, placement.decode
        )
        self.record = msgspec.structs.replace(note, transfer_id=transfer_id)
        return Note(self.record)

    def take_one(
        self, answers: Answers, api: Api | None, request: Request | None, target: Target
    ) -> Note:
        """One slot for the whole request."""
        if target.member.instance.role is Role.PREFILL:
            return Note(self._take(answers, api, request, None, target, None))
        return Note(self._take(answers, api, request, None, None, target))

    def _take(
        self,
        answers: Answers,
        api: Api | None,
        request: Request | None,
        mode: TransferMode | None,
        prefill: Target | None,
        decode: Target | None,
    ) -> Placed:
        record = placed_record(answers, self._worker, api, request, mode, prefill, decode)
        self.record = record
        self.is_open = True
        return record

    def move(self, decode: Target) -> Note:
        """To another decode slot."""
        assert self.record is not None
        self.record = msgspec.structs.replace(self.record, decode=decode.slot)
        return Note(Moved(exchange=self.record.exchange, decode=decode.slot))

    def shown(self, answers: Answers, prefill: Target | None, decode: Target | None) -> Answers:
        """The answers with the route receipt, if it may be shown."""
        if not self._limits.shows_route:
            return answers
        route = receipt(prefill, decode, self._limits.shows_addresses)
        return msgspec.structs.replace(answers, route=route)

    def metadata(self, answers: Answers) -> dict[str, str]:
        assert self.record is not None
        return answers.metadata | answers.route | {"rec": trail(self.record)}

    def give_back(
        self,
        reason: Reason | None,
        *,
        is_handed_over: bool,
        client_phase: str,
        is_prefill_running: bool,
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
            spare=_spare(self.spare),
        )
        return [Note(replied)]


def _spare(target: Target | None) -> Spare | None:
    return None if target is None else Spare(target.slot, target.member.endpoint)
