"""Events of the table that have tests of their own elsewhere: what they come to, and the test."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    event: str
    read: str
    write: str
    test: str
    """`path::name`, without parameters"""
    nixl: str = ""
    """empty: as in READ"""
    nixl_test: str = ""


E2E, NIXL = "tests/e2e", "tests/failures/test_nixl.py"
LEAVE, CRASH, STOP = f"{E2E}/test_clients_leave.py", f"{E2E}/test_crashes.py", f"{E2E}/test_stop.py"

ELSEWHERE = [
    Elsewhere(
        "the client leaves while it uploads",
        "nothing was taken; `cancelled`",
        "same",
        f"{LEAVE}::test_leaving_during_the_upload_takes_nothing",
    ),
    Elsewhere(
        "the client leaves while prefill runs",
        "the prefill leg is closed, which frees its blocks; `cancelled`",
        "decode is closed, prefill goes on: decode's blocks are free when it has pushed",
        f"{LEAVE}::test_leaving_during_prefill_lets_it_push_in_write",
    ),
    Elsewhere(
        "the client leaves after prefill committed KV, before decode was reached",
        "the KV is released by a notice, or counted as orphaned",
        "same",
        f"{LEAVE}::test_leaving_as_prefill_ends_leaves_no_block",
        nixl="orphaned: prefill frees its blocks when their lease is over; `cancelled`",
        nixl_test=f"{NIXL}::test_leaving_between_the_legs_costs_a_lease",
    ),
    Elsewhere(
        "the client leaves while decode waits, or streams",
        "decode is closed; `cancelled`",
        "same",
        f"{LEAVE}::test_leaving_while_decode_works_closes_it",
        nixl="decode is closed, and tells prefill if it has not read the KV yet; `cancelled`",
        nixl_test=f"{NIXL}::test_leaving_while_decode_waits_frees_prefills_blocks",
    ),
    Elsewhere(
        "an answer's headers are held for prefill longer than `decode.idle_timeout_s`",
        "–",
        "504 `decode_timeout`; prefill goes on",
        "tests/failures/test_more.py::test_an_answer_that_is_held_too_long_is_504",
    ),
    Elsewhere(
        "decode dies while its answer's headers are held for prefill",
        "–",
        "503 `decode_reset`; prefill goes on",
        "tests/failures/test_more.py::test_a_decode_that_dies_while_its_answer_is_held",
    ),
    Elsewhere(
        "prefill's engine dies after it answered",
        "decode's own error: it finds no blocks to fetch",
        "had it not pushed, decode is told, and ends with an error of its own",
        "tests/failures/test_more.py::test_a_prefill_engine_that_dies_before_it_pushed",
        nixl="decode's own error, within a stream whose headers were sent: it cannot load KV",
        nixl_test=f"{NIXL}::test_a_prefill_engine_that_dies_after_it_answered",
    ),
    Elsewhere(
        "a worker dies",
        "running streams go on; what it held ends with 503 `no_worker`",
        "same; decode's blocks are freed by the next worker",
        "tests/failures/test_more.py::test_what_a_killed_worker_held_ends_with_503",
    ),
    Elsewhere(
        "all processes of the sidecar die",
        "running streams go on; new requests get 503 `no_worker` from Envoy alone",
        "same",
        f"{CRASH}::test_kill_9_of_the_sidecar_breaks_no_stream",
    ),
    Elsewhere(
        "Envoy dies",
        "its exchanges are closed as `lost` when its ADS stream has been gone for 2 s",
        "same",
        f"{CRASH}::test_killed_envoy_is_started_again",
    ),
    Elsewhere(
        "the sidecar drains",
        "503 `draining`",
        "same",
        f"{STOP}::test_sigterm_drains_and_leaves_nothing",
    ),
]
