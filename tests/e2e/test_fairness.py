"""Every slot gets exactly its share, as the engines count it, whatever the shape of the pool."""

from collections.abc import Callable
from math import lcm

import pytest

from tests.e2e.load import run_right
from tests.e2e.stack import Engine, Stack, until

pytestmark = pytest.mark.e2e


def counts(engines: list[Engine], leg: str) -> list[int]:
    """Requests of each slot, by the engines' own count."""
    return [n for engine in engines for n in engine.state()["ranks"][leg]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_2x8_uses_all_16_slots_evenly(
    stack_of: Callable[..., Stack], workers: int, mode: str
) -> None:
    """320 requests: each of 16 prefill and 16 decode slots exactly 20 times, at any concurrency."""
    stack = stack_of(workers=workers)
    prefill, decode = stack.fleet([8, 8], [8, 8], mode)
    for concurrency in (1, 16, 320):
        run_right(stack.url, 320, concurrency)
        assert counts(prefill, "prefill") == [20] * 16, f"prefill at concurrency {concurrency}"
        assert counts(decode, "decode") == [20] * 16, f"decode at concurrency {concurrency}"
        assert counts(decode, "plain") == [0] * 16
        for engine in (*prefill, *decode):
            state = engine.state()
            assert not state["errors"], state["errors"]
            assert state["held_blocks"] == 0
            engine.ask("reset")
    # Our own books agree with the engines': every request measured, on every slot alike.
    for family, labels in [
        ("placements_total", {"role": "prefill"}),
        ("placements_total", {"role": "decode"}),
        ("prefill_duration_seconds_count", {}),
        ("decode_duration_seconds_count", {}),
        ("requests_total", {"outcome": "ok"}),
        ("time_to_first_token_seconds_count", {}),
    ]:
        until(
            lambda family=family, labels=labels: (
                stack.metric(f"pd_sidecar_{family}", **labels) == 960
            ),
            f"{family} {labels} counts every request",
            5,
        )
    assert {one["placed"] for one in stack.instances().values()} == {480}


@pytest.mark.parametrize(
    ("prefill_dp", "decode_dp"),
    [
        ([1], [1]),
        ([1, 1], [1, 1]),
        ([1, 1], [1, 1, 1, 1]),
        ([8], [8]),
        ([1], [8]),
        ([8, 8], [8, 8, 8]),
        ([8, 4], [2, 8]),
    ],
    ids=str,
)
def test_every_shape_is_exact(
    stack_of: Callable[..., Stack], prefill_dp: list[int], decode_dp: list[int]
) -> None:
    """20 laps of both walks, at most 480 requests, 16 at a time over two workers."""
    stack = stack_of(workers=2)
    prefill, decode = stack.fleet(prefill_dp, decode_dp)
    n, m = sum(prefill_dp), sum(decode_dp)
    both = lcm(n, m)
    count = min(20, 480 // both) * both
    run_right(stack.url, count, 16)
    assert counts(prefill, "prefill") == [count // n] * n
    assert counts(decode, "decode") == [count // m] * m
    for engine, dp_size in zip([*prefill, *decode], [*prefill_dp, *decode_dp], strict=True):
        assert not engine.state()["errors"]
        leg = "prefill" if engine.role == "prefill" else "decode"
        ranks = {dict(r["headers"]).get("X-data-parallel-rank".lower()) for r in engine.last(leg)}
        assert (ranks == {None}) == (dp_size == 1), f"dp {dp_size} got the rank headers {ranks}"
