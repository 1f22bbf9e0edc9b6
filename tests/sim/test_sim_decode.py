"""A decode leg's wait for its blocks, when two things happen in one turn of the loop."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from sidecar.sim.core import Core
from sidecar.sim.decode import Decode
from sidecar.sim.kv_params import read_kv_params
from sidecar.sim.messages import Push
from sidecar.sim.model_request import read_model_request
from sidecar.sim.notify_messages import WriteDone, WriteFailed
from sidecar.sim.options import Rank, SimOptions
from tests.ports import free_port

pytestmark = pytest.mark.asyncio

KV = {
    "do_remote_prefill": True,
    "transfer_id": "tx-1",
    "remote_host": "127.0.0.1",
    "remote_handshake_port": 1,
    "is_request_leader": True,
}


@pytest.fixture
def make_core() -> Iterator[Callable[[], Core]]:
    made: list[Core] = []

    def make() -> Core:
        made.append(Core(SimOptions("decode", mode="WRITE"), "127.0.0.1", 1, 2))
        return made[-1]

    yield make
    for core in made:
        core.notifier.close()
        core.zmq.term()


@pytest.mark.parametrize("message", [WriteDone("tx-1"), WriteFailed("tx-1")])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_message_beside_the_clients_leaving_leaks_nothing(
    make_core, message, is_first
) -> None:
    """Whichever comes first, the wait has ended and its blocks are free."""
    core = make_core()
    decode = Decode(core)
    params = {**KV, "remote_notify_port": free_port()}
    body = {"prompt": "hello", "kv_transfer_params": params}
    request = read_model_request("completions", body, core.models, core.options.max_model_len)
    waiting = asyncio.create_task(decode.obtain(request, read_kv_params(params), 0, "r"))
    await asyncio.sleep(0)
    assert core.waiting == 1
    assert decode.answer_handshake(0, Push(1, "tx-1", 0, [b"x" * 16])).error is None
    if is_first:
        decode.hear(Rank(0, 0), message)
        waiting.cancel()
    else:
        waiting.cancel()
        decode.hear(Rank(0, 0), message)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (decode.leaked, dict(core.counters.errors), core.waiting) == ({}, {}, 0)
