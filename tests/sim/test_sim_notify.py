"""Notify ports from outside: what frees, what fails, and what ends a rank's listener."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


class Notifier:
    """Tells engines' notify ports as a router would: one DEALER a port, one frame a message."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._dealers: dict[int, zmq.Socket[bytes]] = {}

    def tell(self, engine: Any, message: dict[str, Any] | bytes, *offsets: int) -> None:
        """To the engine's rank 0, or to those ports."""
        raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        for offset in offsets or (0,):
            self._dealer(engine.ready["notify_port"] + offset).send(raw)

    def _dealer(self, port: int) -> "zmq.Socket[bytes]":
        if port not in self._dealers:
            dealer = self._context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://127.0.0.1:{port}")
            self._dealers[port] = dealer
        return self._dealers[port]

    def close(self) -> None:
        for dealer in self._dealers.values():
            dealer.close()
        self._context.term()


@pytest.fixture
def notifier() -> Iterator[Notifier]:
    made = Notifier()
    yield made
    made.close()


def _release(transfer_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "release", "transfer_id": transfer_id, "consumer_tp_size": 1, **more}


def _failed(transfer_id: str) -> dict[str, Any]:
    return {"type": "write_failed", "transfer_id": transfer_id}


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
@pytest.mark.parametrize("is_bare", [False, True])
async def test_release_frees_a_held_transfer(lab, body_of, notifier, mode, is_bare) -> None:
    """The map of 0.33 and the bare id of older versions free the blocks at once."""
    prefill, decode = lab.pair(mode)
    body = body_of("completions", "x" * 600)
    kv = {"transfer_id": "tx-1", **decode.peer_keys()}
    await lab.prefill(prefill, "completions", body, **kv)
    assert (await lab.state(prefill))["held_blocks"] == 3
    notifier.tell(prefill, b"tx-1" if is_bare else _release("tx-1"))
    state = await lab.until(prefill, lambda state: state["released_by_notify"] == 1)
    assert (state["held_blocks"], state["held_transfers"], state["released"]) == (0, 0, 1)
    assert (state["early_releases"], state["reaped"], state["errors"]) == (0, 0, {})


async def test_released_blocks_cannot_be_fetched(lab, body_of, notifier) -> None:
    """A decode leg that comes after the release fails."""
    prefill, decode = lab.pair("READ")
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body, transfer_id="tx-1")
    notifier.tell(prefill, _release("tx-1"))
    await lab.until(prefill, lambda state: state["released_by_notify"] == 1)
    late = await lab.decode(decode, "completions", body, **first.json["kv_transfer_params"])
    assert late.status == 500


async def test_early_release_frees_the_transfer_when_it_comes(lab, body_of, notifier) -> None:
    """A release of an unknown id is kept, and is the end of that transfer's blocks."""
    prefill = lab.start("prefill")
    notifier.tell(prefill, _release("tx-1"))
    await lab.until(prefill, lambda state: state["early_releases"] == 1)
    body = body_of("completions", "hello")
    leg = await lab.prefill(prefill, "completions", body, transfer_id="tx-1")
    assert leg.status == 200
    state = await lab.state(prefill)
    assert (state["held_blocks"], state["released_by_notify"]) == (0, 1)


async def test_release_needs_every_tensor_parallel_rank(lab, body_of, notifier) -> None:
    """With three ranks told the blocks stay, with the fourth they go."""
    prefill = lab.start("prefill", tp_size=4)
    body = body_of("completions", "hello")
    await lab.prefill(prefill, "completions", body, transfer_id="tx-1")
    notifier.tell(prefill, _release("tx-1"), 0, 1, 2)
    notifier.tell(prefill, _release("tx-other"), 0, 1, 2)
    await lab.until(prefill, lambda state: state["early_releases"] == 1)
    assert (await lab.state(prefill))["held_transfers"] == 1
    notifier.tell(prefill, _release("tx-1"), 3)
    await lab.until(prefill, lambda state: state["held_transfers"] == 0)


async def test_a_wider_consumer_releases_more_than_once(lab, body_of, notifier) -> None:
    """Each of prefill's ranks wants one release from each of the consumer's ranks it serves."""
    prefill = lab.start("prefill", tp_size=2)
    body = body_of("completions", "hello")
    await lab.prefill(prefill, "completions", body, transfer_id="tx-1")
    notifier.tell(prefill, _release("tx-1", consumer_tp_size=4), 0, 0, 1)
    notifier.tell(prefill, _release("tx-other"), 1)
    await lab.until(prefill, lambda state: state["early_releases"] == 1)
    assert (await lab.state(prefill))["held_transfers"] == 1
    notifier.tell(prefill, _release("tx-1", consumer_tp_size=4), 1)
    await lab.until(prefill, lambda state: state["held_transfers"] == 0)


async def test_a_consumer_that_does_not_divide_kills_the_engine(lab, notifier) -> None:
    """The listener lives, but the worker raises when it counts the releases."""
    prefill = lab.start("prefill", tp_size=2)
    notifier.tell(prefill, _release("tx-1", consumer_tp_size=3))
    state = await lab.until(prefill, lambda state: state["is_dead"])
    assert state["cause_of_death"] == "release_tp_misfit"


async def test_release_at_another_rank_frees_nothing(lab, body_of, notifier) -> None:
    """A data-parallel rank knows its own transfers alone."""
    prefill = lab.start("prefill", dp_size=2)
    body = body_of("completions", "hello")
    await lab.prefill(prefill, "completions", body, 1, transfer_id="tx-1")
    notifier.tell(prefill, _release("tx-1"), 0)
    await lab.until(prefill, lambda state: state["early_releases"] == 1)
    assert (await lab.state(prefill))["held_transfers"] == 1
    notifier.tell(prefill, _release("tx-1"), 1)
    await lab.until(prefill, lambda state: state["held_transfers"] == 0)


async def test_a_released_transfer_is_pushed_to_nobody(lab, body_of, notifier) -> None:
    """Decode's notice comes after the release: it is ignored, and decode waits on."""
    prefill, decode = lab.pair("WRITE", defer_timeout_s=0.3)
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill,
        decode,
        "completions",
        body,
        prefill_kv={"transfer_id": "tx-1"},
        decode_kv={"transfer_id": "tx-1"},
    )
    await first
    notifier.tell(prefill, _release("tx-1"))
    await lab.until(prefill, lambda state: state["released_by_notify"] == 1)
    waiting = asyncio.ensure_future(second)
    await lab.until(decode, lambda state: state["waiting"] == 1)
    notifier.tell(decode, _failed("tx-1"))
    assert (await waiting).status == 500
    assert (await lab.state(prefill))["notices"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_write_failed_ends_the_wait(lab, body_of, notifier, stream) -> None:
    """The waiting request fails, as vLLM's policy `fail` does, and nothing is leaked."""
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello", stream=stream)
    first, second = lab.write_legs(
        prefill, decode, "completions", body, decode_kv={"transfer_id": "tx-1"}
    )
    first.close()
    waiting = asyncio.ensure_future(second)
    await lab.until(decode, lambda state: state["waiting"] == 1)
    notifier.tell(decode, _failed("tx-1"))
    answer = await waiting
    assert (answer.events[0]["error"]["code"] if stream else answer.status) == 500
    state = await lab.state(decode)
    assert (state["failed_by_notify"], state["leaked_blocks"], state["errors"]) == (1, 0, {})


async def test_write_failed_frees_leaked_blocks(lab, body_of, notifier) -> None:
    """The client left while decode waited; the message frees what it left."""
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill, decode, "completions", body, decode_kv={"transfer_id": "tx-1"}
    )
    first.close()
    waiting = asyncio.ensure_future(second)
    await lab.until(decode, lambda state: state["waiting"] == 1)
    waiting.cancel()
    await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    notifier.tell(decode, _failed("tx-1"))
    state = await lab.until(decode, lambda state: state["leaked_transfers"] == 0)
    assert (state["failed_by_notify"], state["leaked_blocks"]) == (1, 0)


async def test_write_failed_before_its_request_fails_it(lab, body_of, notifier) -> None:
    """An unknown id is remembered for the one request that comes with it."""
    prefill, decode = lab.pair("WRITE", tp_size=2)
    notifier.tell(decode, _failed("tx-1"), 0, 1)
    notifier.tell(decode, {"type": "write_done", "transfer_id": "tx-0"}, 0, 1)
    # Both ports hear in order, so what came before this count was heard too.
    await lab.until(decode, lambda state: state["errors"] == {"unknown_transfer": 1})
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill, decode, "completions", body, decode_kv={"transfer_id": "tx-1"}
    )
    first.close()
    assert (await second).status == 500
    assert (await lab.state(decode))["failed_by_notify"] == 1


async def test_write_failed_needs_every_tensor_parallel_rank(lab, body_of, notifier) -> None:
    """One rank's failure alone ends no wait."""
    prefill, decode = lab.pair("WRITE", tp_size=2)
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill, decode, "completions", body, decode_kv={"transfer_id": "tx-1"}
    )
    first.close()
    waiting = asyncio.ensure_future(second)
    await lab.until(decode, lambda state: state["waiting"] == 1)
    notifier.tell(decode, _failed("tx-1"), 1)
    notifier.tell(decode, b"\xff", 1)
    await lab.until(decode, lambda state: state["notify_threads_dead"] == 1)
    assert (await lab.state(decode))["waiting"] == 1
    notifier.tell(decode, _failed("tx-1"), 0)
    assert (await waiting).status == 500


async def test_tensor_parallel_pairs_tell_every_rank(lab, body_of) -> None:
    """Unequal sizes pair in WRITE: each side tells all ports of the other."""
    prefill, decode = lab.spawn("prefill", mode="WRITE", tp_size=4), None
    decode = lab.spawn("decode", mode="WRITE", tp_size=2)
    prefill.await_ready()
    decode.await_ready()
    body = body_of("completions", "hello")
    legs = lab.write_legs(prefill, decode, "completions", body)
    _, answer = await asyncio.gather(*legs)
    assert answer.text == expected_text("completions", body)
    assert (await lab.state(prefill))["errors"] == {}


KILLERS = [
    ("prefill", "READ", "0.33.0", _failed("T"), "notify_wrong_role"),
    ("prefill", "WRITE", "0.33.0", {"type": "write_done", "transfer_id": "T"}, "notify_wrong_role"),
    ("decode", "WRITE", "0.33.0", _release("T"), "notify_wrong_role"),
    ("decode", "READ", "0.33.0", _release("T"), "notify_wrong_role"),
    ("decode", "WRITE", "0.32.0", _failed("T"), "notify_too_old"),
    ("prefill", "READ", "0.32.0", _release("T"), "notify_too_old"),
    ("prefill", "READ", "0.33.0", _release("T", consumer_tp_size=-1), "notify_bad_tp_size"),
    ("prefill", "READ", "0.33.0", {"type": "abort"}, "notify_unknown_type"),
    ("prefill", "READ", "0.33.0", b"\xff\x00", "notify_unreadable"),
    (
        "prefill",
        "WRITE",
        "0.33.0",
        {"type": "remote_blocks", "transfer_id": "T", "block_notify_list": []},
        "notify_empty_blocks",
    ),
]


@pytest.mark.parametrize(("role", "mode", "version", "message", "kind"), KILLERS)
async def test_killers_end_the_rank_that_got_them(
    lab, notifier, role, mode, version, message, kind
) -> None:
    """The thread of that rank alone is dead, the engine looks healthy, the kind is counted."""
    engine = lab.start(role, mode=mode, version=version, dp_size=2)
    notifier.tell(engine, message, 1)
    state = await lab.until(engine, lambda state: state["notify_threads_dead"] == 1)
    assert state["errors"] == {kind: 1}
    assert not state["is_dead"]
    await lab.until_refused(engine.ready["notify_port"] + 1, True)
    notifier.tell(engine, message, 0)
    await lab.until(engine, lambda state: state["notify_threads_dead"] == 2)


async def test_with_a_dead_thread_write_hangs_and_read_leaks(lab, body_of, notifier) -> None:
    """Nothing is heard on that rank any more: no notice, and no release."""
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    notifier.tell(prefill, b"\xff")
    await lab.until(prefill, lambda state: state["notify_threads_dead"] == 1)
    first, second = lab.write_legs(prefill, decode, "completions", body)
    waiting = asyncio.ensure_future(second)
    assert (await first).status == 200
    state = await lab.until(decode, lambda state: state["waiting"] == 1)
    assert (await lab.state(prefill))["notices"] == 0
    waiting.cancel()

    prefill, decode = lab.pair("READ", defer_timeout_s=0.5)
    notifier.tell(prefill, b"\xff")
    await lab.until(prefill, lambda state: state["notify_threads_dead"] == 1)
    first = await lab.prefill(prefill, "completions", body)
    answer = await lab.decode(decode, "completions", body, **first.json["kv_transfer_params"])
    assert answer.text == expected_text("completions", body)
    state = await lab.state(prefill)
    assert (state["held_transfers"], state["released"]) == (1, 0)
    await lab.until(prefill, lambda state: state["reaped"] == 1)


async def test_a_new_life_hears_again(lab, body_of, notifier) -> None:
    """A dead thread is of one life, and the same DEALER reaches the next."""
    prefill = lab.start("prefill")
    notifier.tell(prefill, b"\xff")
    await lab.until(prefill, lambda state: state["notify_threads_dead"] == 1)
    await lab.control(prefill, "faults", kind="die", down_s=0.1)
    assert (await lab.until_alive(prefill))["notify_threads_dead"] == 0
    body = body_of("completions", "hello")
    await lab.prefill(prefill, "completions", body, transfer_id="tx-1")
    notifier.tell(prefill, _release("tx-1"))
    await lab.until(prefill, lambda state: state["released_by_notify"] == 1)


async def test_write_messages_in_read_mode_are_heard_and_counted(lab, notifier) -> None:
    """vLLM keeps them and never looks at them; a router that sends them is wrong."""
    decode = lab.start("decode", mode="READ")
    notifier.tell(decode, _failed("tx-1"))
    state = await lab.until(decode, lambda state: state["errors"])
    assert (state["errors"], state["notify_threads_dead"]) == ({"notify_in_read_mode": 1}, 0)


async def test_thousands_of_messages_at_once_are_all_heard(lab, notifier) -> None:
    """Nothing is lost or left unread between two turns of the loop."""
    prefill = lab.start("prefill")
    for number in range(5000):
        notifier.tell(prefill, _release(f"tx-{number}"))
    await lab.until(prefill, lambda state: state["early_releases"] == 5000)
