"""Drives an `Exchange` on values: performs its effects in order, as the ext_proc server does, and
keeps what a test asks about. Fails at once where an effect comes that may not come any more."""

from collections.abc import Sequence

from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.effects import (
    ClosePrefill,
    Confirm,
    Effect,
    EndTransfer,
    FailTransfer,
    Note,
    Place,
    Send,
    StartPrefill,
)
from sidecar.exchange.events import Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import Phase
from sidecar.exchange.records import Placed, PrefillEnded, Record, Refused, Replied
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.slots import Demand, NoPlacement, Placement, Target
from sidecar.routing.view import Member
from sidecar.wire.ext_proc import BodyReply, ImmediateReply, Reply, RequestBody, RequestHeaders

ID = "0123456789abcdef0123456789abcdef"
READY = Situation(is_draining=False, has_prefill=True, has_decode=True, cards=(ModelCard("m"),))
READ, WRITE = TransferMode.READ, TransferMode.WRITE
V33 = Version(0, 33)
RESPONSES = "/v1/responses"

KV = (
    b'{"id":"x","kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_block_ids":[[1,2]],"remote_engine_id":"10.0.0.1:6301","remote_dp_rank":1,'
    b'"transfer_id":"tx-p"}}'
)
NIXL_KV = (
    b'{"id":"x","kv_transfer_params": {"do_remote_prefill" : true,"do_remote_decode":false,'
    b'"remote_block_ids":[[1,2]],"remote_engine_id":"e-1","remote_request_id":"cmpl-x-0-1234",'
    b'"remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"transfer_mode":"pull"}}'
)
PREFILL_OK = PrefillAnswered(status=200, body=KV, seconds=0.5)
NIXL_OK = PrefillAnswered(status=200, body=NIXL_KV, seconds=0.5)
PREFILL_WITHOUT_KV = PrefillAnswered(status=200, body=b'{"kv_transfer_params":null}', seconds=0.5)


def member(
    role: Role,
    ordinal: int,
    *,
    mode: TransferMode = READ,
    connector: Connector = Connector.MORIIO,
    version: Version | None = V33,
    dp_size: int = 2,
    tp_size: int = 1,
) -> Member:
    host = f"10.0.{0 if role is Role.PREFILL else 1}.{ordinal}"
    return Member(
        instance=Instance(
            address=f"{host}:8000",
            role=role,
            transfer_mode=mode,
            connector=connector,
            dp_size=dp_size,
            tp_size=tp_size,
            kv_host=host,
            handshake_port=6301,
            notify_port=61005,
        ),
        ordinal=ordinal,
        endpoint=f"{host}:8000",
        state=State.READY,
        is_placeable=True,
        version=version,
        models=("m",),
    )


def prefill(ordinal: int = 0, rank: int = 1, **what: object) -> Target:
    return Target(member(Role.PREFILL, ordinal, **what), rank)


def decode(ordinal: int = 5, rank: int = 0, **what: object) -> Target:
    return Target(member(Role.DECODE, ordinal, **what), rank)


def read_pair(p: int = 0, d: int = 5) -> Placement:
    return Placement(prefill(p), decode(d), READ)


def write_pair(p: int = 0, d: int = 5) -> Placement:
    return Placement(prefill(p, mode=WRITE), decode(d, mode=WRITE), WRITE)


def nixl_pair(p: int = 0, d: int = 5, **what: object) -> Placement:
    ends = prefill(p, connector=Connector.NIXL, **what), decode(d, connector=Connector.NIXL, **what)
    return Placement(*ends, READ)


def headers(path: str = "/v1/completions", *, is_last: bool = False, **more: str) -> RequestHeaders:
    named = {k.replace("_", "-"): v for k, v in more.items()}
    method = named.pop("method", "POST")
    return RequestHeaders({":method": method, ":path": path, **named}, is_last)


BODY = RequestBody(b'{"model":"m","prompt":"hi","max_tokens":7,"stream":true}')


class Driver:
    def __init__(
        self,
        *placements: Placement | NoPlacement,
        confirms: Placement | NoPlacement | None = None,
        limits: Limits | None = None,
        situation: Situation = READY,
        others_bytes: int = 0,
    ) -> None:
        self.budget = BodyBudget(1 << 20)
        self._others_bytes = others_bytes
        self.budget.take(others_bytes)
        self.exchange = Exchange(ID, 3, situation, limits or Limits(), self.budget)
        self.now = 1000.0
        self.sent: list[Reply] = []
        self.notes: list[Record] = []
        self.legs: list[StartPrefill] = []
        self.demands: list[Demand | None] = []
        self.effects: list[Effect] = []
        self.is_prefill_open = False
        self.awaited: set[str] = set()
        """transfers that decode waits for"""
        self._placements = list(placements)
        self._confirms = confirms

    def feed(self, *events: Event) -> "Driver":
        for event in events:
            was_over = self.has_ended
            sent = len(self.sent)
            was_alone = self.exchange.phase is Phase.PREFILL_ALONE
            effects = self.exchange.handle(event, self.now)
            assert not (was_over and effects), f"{effects} after the end"
            if isinstance(event, PrefillAnswered | PrefillFailed):
                self.is_prefill_open = False
            self._perform(effects)
            assert not self.is_over or self.budget.taken == self._others_bytes
            assert not was_alone or len(self.sent) == sent, "a reply to a client that is gone"
        return self

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Send):
                self.sent.append(effect.reply)
            elif isinstance(effect, Note):
                self.notes.append(effect.record)
            elif isinstance(effect, StartPrefill):
                assert not self.is_prefill_open, "a second prefill leg beside the first"
                self.legs.append(effect)
                self.is_prefill_open = True
                if effect.transfer is not None:
                    self.awaited.add(effect.transfer.transfer_id)
            elif isinstance(effect, EndTransfer | FailTransfer):
                self.awaited.remove(effect.transfer_id)  # KeyError: not open, or ended before
            elif isinstance(effect, ClosePrefill):
                assert self.is_prefill_open, "there is no prefill leg to close"
                self.is_prefill_open = False
            elif isinstance(effect, Place):
                self.demands.append(effect.demand)
                self._perform(self.exchange.handle(self._placements.pop(0), self.now))
            elif isinstance(effect, Confirm):
                answer = self._confirms or effect.placement
                self._perform(self.exchange.handle(answer, self.now))

    # --- what a test asks

    @property
    def has_ended(self) -> bool:
        return self.exchange.phase is Phase.DONE

    @property
    def is_over(self) -> bool:
        """For its client: at most a prefill leg goes on."""
        return self.exchange.phase in (Phase.DONE, Phase.PREFILL_ALONE)

    @property
    def immediate(self) -> ImmediateReply:
        assert isinstance(self.sent[-1], ImmediateReply), self.sent
        return self.sent[-1]

    @property
    def body_reply(self) -> BodyReply:
        (reply,) = (r for r in self.sent if isinstance(r, BodyReply))
        return reply

    @property
    def reason(self) -> str:
        return self.immediate.headers["x-pd-error"]

    def records(self, kind: type[Record]) -> list[Record]:
        return [r for r in self.notes if isinstance(r, kind)]

    @property
    def placed(self) -> Placed:
        record = self.records(Placed)[-1]
        assert isinstance(record, Placed)
        return record

    @property
    def replied(self) -> Replied:
        (record,) = self.records(Replied)
        assert isinstance(record, Replied)
        return record

    @property
    def refused(self) -> Refused:
        (record,) = self.records(Refused)
        assert isinstance(record, Refused)
        return record

    @property
    def prefill_ends(self) -> list[PrefillEnded]:
        return [r for r in self.notes if isinstance(r, PrefillEnded)]
