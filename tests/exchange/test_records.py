"""What goes between control and workers survives the hop."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import (
    Batch,
    Hello,
    Moved,
    Placed,
    PrefillEnded,
    Refused,
    Replied,
    decode_from_worker,
    decode_view,
    encode,
)
from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.view import View
from tests.exchange.exchange_driver import member

PLACED = Placed(
    exchange="e",
    worker=1,
    api="messages",
    model="m",
    is_streaming=True,
    mode=TransferMode.WRITE,
    prefill=Slot("p:1", 2),
    decode=None,
    prompt_bytes=7,
    placement_s=0.5,
)
RECORDS = (
    PLACED,
    PrefillEnded(exchange="e", seconds=None, reason=Reason.PREFILL_RESET),
    Moved(exchange="e", decode=Slot("d:1", 0)),
    Replied(exchange="e", is_handed_over=True, gap_s=0.1, overhead_s=0.2, phase="decode"),
    Refused(exchange="e", api="other", model="", is_streaming=False, reason=Reason.DRAINING),
)


@pytest.mark.parametrize(
    "message",
    [
        Hello(worker=2, pid=7, open=(PLACED,)),
        Batch(records=RECORDS, dropped=3, unlocked_picks=4),
        Batch(records=()),
    ],
)
def test_messages_of_workers(message: Hello | Batch) -> None:
    """Every record, with every field."""
    assert decode_from_worker(encode(message)) == message


def test_views() -> None:
    """Whole, members and all."""
    view = View(number=3, members=(member(Role.PREFILL, 0),), is_draining=True)
    assert decode_view(encode(view)) == view


@given(st.binary(max_size=40))
def test_garbage_is_a_msgspec_error(data: bytes) -> None:
    """The link hangs up on it; no other exception comes."""
    for decode in (decode_from_worker, decode_view):
        with pytest.raises(msgspec.MsgspecError):
            decode(data)
