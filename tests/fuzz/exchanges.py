"""Whole exchanges: what a client sent, and what prefill answered, through the state machine."""

import json

from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.phase import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Connector
from sidecar.routing.slots import Placement
from sidecar.wire import kv_transfer, openai
from sidecar.wire.ext_proc import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    encode,
)
from tests.exchange.exchange_driver import (
    NIXL_OK,
    PREFILL_OK,
    READY,
    Driver,
    nixl_pair,
    read_pair,
    write_pair,
)
from tests.fuzz import reference
from tests.fuzz.bodies import LIMITS, PAIR, PULLED, SEVERAL, engine_sees, same


def check_prefill_answer(data: bytes) -> None:
    """What prefill answered: KV or not, and then a decode body that says what it handed over."""
    found = kv_transfer.handed_over(data, Connector.MORIIO)
    answer = engine_sees(data) if found is not None else None
    if isinstance(found, kv_transfer.HandedOver):
        leg = kv_transfer.decode_body_read(openai.split(_BODY), PAIR, found)
        if answer is not None:
            params = reference.read(leg)["kv_transfer_params"]
            assert params["do_remote_prefill"] is True
            assert params["do_remote_decode"] is False
            same(
                params.get("remote_block_ids"), answer["kv_transfer_params"].get("remote_block_ids")
            )
    elif answer is not None:
        keys = answer["kv_transfer_params"].keys()
        assert "remote_port" in keys
        assert not keys & _MORIIOS
    _check_ended(data, found, read_pair(), read_pair(1))


def check_nixl_answer(data: bytes) -> None:
    """The same of an engine with NIXL: decode gets the whole object, to the byte."""
    found = kv_transfer.handed_over(data, Connector.NIXL)
    answer = engine_sees(data) if found is not None else None
    if isinstance(found, kv_transfer.HandedOver):
        assert bytes(found.raw) in data
        leg = kv_transfer.decode_body_read(openai.split(_BODY), PULLED, found)
        assert leg == _BODY[:-1] + b',"kv_transfer_params":' + bytes(found.raw) + b"}"
        if answer is not None:
            params = answer["kv_transfer_params"]
            assert params["do_remote_prefill"] is True
            assert not params.keys() & _MORIIOS
    elif answer is not None:
        assert answer["kv_transfer_params"].keys() & _MORIIOS
    _check_ended(data, found, nixl_pair(), nixl_pair(1))


def _check_ended(data: bytes, found: object, *placements: Placement) -> None:
    """The exchange that got this answer: over, and decode has it only where it is ours."""
    for status in (200, 400, 500):
        driver = Driver(*placements, limits=Limits(prefill_attempts=1))
        driver.feed(_POST, RequestBody(_BODY), PrefillAnswered(status=status, body=data))
        assert driver.has_ended
        for reply in driver.sent:
            encode(reply)
        if status == 200 and isinstance(found, kv_transfer.OtherConnector):
            assert driver.reason == "wrong_connector"
        elif status == 200:
            is_pulled = b"kv_transfer_params" in (driver.body_reply.body or b"")
            assert is_pulled == isinstance(found, kv_transfer.HandedOver)


_BODY = b'{"model":"m","prompt":"hi"}'
_MORIIOS = {"transfer_id", "remote_handshake_port"}


_POST = RequestHeaders({":method": "POST", ":path": "/v1/completions"}, False)


def check_exchange(data: bytes) -> None:
    """A whole request, READ and WRITE: placed or refused, and what was taken is given back.

    `METHOD PATH`, then a header a line, a blank line, the body; as HTTP/1 would have it.
    """
    head, _, body = data.partition(b"\n\n")
    line, *lines = head.decode("latin-1").split("\n")
    method, _, path = line.partition(" ")
    headers = {":method": method, ":path": path}
    for one in lines:
        name, _, value = one.partition(":")
        headers[name.strip().lower()] = value.strip()
    start = RequestHeaders(headers, not body)
    for situation in (READY, SEVERAL):
        reading = Driver(read_pair(), confirms=read_pair(0, 6), limits=LIMITS, situation=situation)
        _run(reading, start, body)
        _run(Driver(write_pair(), limits=LIMITS, situation=situation), start, body)
        _run(Driver(nixl_pair(), limits=LIMITS, situation=situation), start, body, NIXL_OK)


def _run(
    driver: Driver, start: RequestHeaders, body: bytes, good: PrefillAnswered = PREFILL_OK
) -> None:
    driver.feed(start)
    if driver.exchange.phase is Phase.BODY:
        driver.feed(RequestBody(body))
    is_write = driver.exchange.phase is Phase.DECODE
    if driver.exchange.phase in (Phase.PREFILL, Phase.DECODE):
        failed = PrefillFailed(reason=Reason.PREFILL_TIMEOUT)
        driver.feed(good if len(body) % 2 else failed)
    if driver.exchange.phase is Phase.DECODE_ALONE:
        driver.feed(ResponseHeaders(200))
    assert driver.has_ended, driver.exchange.phase
    assert not driver.awaited
    assert not driver.is_prefill_open
    for reply in driver.sent:
        encode(reply)
    dispatched = [r.body for r in driver.sent if isinstance(r, BodyReply) and r.body is not None]
    for leg in [*dispatched, *(start.body for start in driver.legs)]:
        named = json.loads(leg, parse_int=str)
        assert "request_id" not in named
    assert is_write or isinstance(driver.sent[-1], BodyReply | HeadersReply | ImmediateReply)
