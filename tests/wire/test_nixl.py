"""The bodies and ids of both legs with NIXL, key by key as protocol g has them."""

import json
from typing import Any

import pytest

from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.view import Member
from sidecar.wire.kv_transfer import (
    HandedOver,
    OtherConnector,
    Pair,
    can_name_each_other,
    decode_body_read,
    handed_over,
    prefill_body,
    request_id,
)
from sidecar.wire.openai import split
from sidecar.wire.paths import Api

READ = TransferMode.READ
MORIIO, NIXL = Connector.MORIIO, Connector.NIXL
HEX = "0123456789abcdef0123456789abcdef"


def member(role: Role, connector: Connector = NIXL, version: Version | None = None) -> Member:
    address = "10.0.0.1:8000" if role is Role.PREFILL else "10.0.0.2:8000"
    return Member(
        instance=Instance(
            address=address, role=role, transfer_mode=READ, connector=connector, dp_size=4
        ),
        ordinal=0,
        endpoint=address,
        state=State.READY,
        is_placeable=True,
        version=version,
    )


PAIR = Pair(member(Role.PREFILL), 3, member(Role.DECODE), 1, "tx-1")
PLAIN = split(b'{"model":"m","prompt":"hi"}')


def prefill(body: bytes, api: Api) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(prefill_body(split(body), api, PAIR, READ))
    return found


def answer(params: str) -> bytes:
    return b'{"id":"x", "kv_transfer_params" : %s ,"choices":[]}' % params.encode()


# --- prefill


@pytest.mark.parametrize("api", [Api.COMPLETIONS, Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_prefill_is_told_that_somebody_will_come(api: Api) -> None:
    """Nothing of decode, and no transfer id: the engines know none."""
    assert prefill(b'{"model":"m"}', api)["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


LIMITED = (
    b'{"model":"m","max_tokens":100,"max_completion_tokens":90,"max_output_tokens":80,'
    b'"min_tokens":10,"ignore_eos":false,"n":1,"stream":true,"stream_options":{"a":1},"stop":["x"],'
    b'"stop_token_ids":[1],"logprobs":5,"prompt_logprobs":null,"seed":1e2}'
)


@pytest.mark.parametrize(
    ("api", "limits"),
    [
        (Api.COMPLETIONS, {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 80}),
        (Api.CHAT, {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 80}),
        (Api.MESSAGES, {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 80}),
        (Api.RESPONSES, {"max_output_tokens": 1, "max_tokens": 100, "max_completion_tokens": 90}),
    ],
)
def test_prefill_makes_one_token_whole_however_it_ends(api: Api, limits: dict[str, int]) -> None:
    """`min_tokens` above it would be refused, and the client's `ignore_eos` is left alone: KV is
    handed over by a prefill that stopped, too."""
    leg = prefill(LIMITED, api)
    del leg["kv_transfer_params"]
    assert leg == {
        "model": "m", "ignore_eos": False, "n": 1, "seed": 100.0, "stream": False, **limits
    }  # fmt: skip


def test_prefill_gets_nothing_that_its_api_does_not_know() -> None:
    """No `ignore_eos` of ours, and `n` only where the shape has it."""
    own = {"kv_transfer_params", "stream"}
    assert prefill(b"{}", Api.CHAT).keys() == own | {"max_tokens", "n"}
    assert prefill(b"{}", Api.MESSAGES).keys() == own | {"max_tokens"}
    assert prefill(b"{}", Api.RESPONSES).keys() == own | {"max_output_tokens"}


# --- what is handed over

NEWEST = (
    '{ "do_remote_prefill" : true, "do_remote_decode":false,"remote_block_ids":[[1, 2],[3]],'
    '"remote_engine_id":"e-1","remote_request_id":"cmpl-x-0-1a2b","remote_host":"10.9.9.9",'
    '"remote_port":5603,"tp_size":2,"dcp_size":1,"pp_size":1,"remote_num_tokens":17,'
    '"remote_blocks_expiry_time":null,"transfer_mode":"pull","new_key":1e2, "\\u0061":"\\u00e4"}'
)
OLDER = (
    '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2],'
    '"remote_engine_id":"e-1","remote_host":"10.9.9.9","remote_port":5600}'
)
OLDEST = '{"do_remote_prefill":true,"remote_block_ids":[1]}'


@pytest.mark.parametrize("params", [NEWEST, OLDER, OLDEST])
def test_decode_gets_what_prefill_answered_to_the_byte(params: str) -> None:
    """Block ids, white space, escapes and keys that nobody here knows; nothing is added, and no
    key is required, for versions have more of them and fewer."""
    found = handed_over(answer(params), NIXL)
    assert isinstance(found, HandedOver)
    expected = b'{"model":"m","prompt":"hi","kv_transfer_params":' + params.encode() + b"}"
    assert decode_body_read(PLAIN, PAIR, found) == expected


@pytest.mark.parametrize("value", ["false", "null", "1", '"true"', "[true]"])
def test_only_the_flag_says_that_kv_was_handed_over(value: str) -> None:
    """All else may be there: its blocks are free."""
    assert handed_over(answer(NEWEST.replace("true", value, 1)), NIXL) is None


def test_of_a_repeated_flag_the_last_counts() -> None:
    """As in the engine that will read it."""
    twice = '{"do_remote_prefill":true,"do_remote_prefill":false}'
    assert handed_over(answer(twice), NIXL) is None


MORIIOS = (
    '{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1],'
    '"remote_engine_id":"10.0.0.1:6301","remote_host":"10.0.0.1","remote_handshake_port":"6301",'
    '"remote_notify_port":61005,"transfer_id":"tx-1"}'
)


@pytest.mark.parametrize(
    ("params", "pool", "expected"),
    [
        (NEWEST, MORIIO, OtherConnector(NIXL, "remote_port")),
        (OLDER, MORIIO, OtherConnector(NIXL, "remote_port")),
        (MORIIOS, NIXL, OtherConnector(MORIIO, "transfer_id")),
        (
            MORIIOS.replace("transfer_id", "other"),
            NIXL,
            OtherConnector(MORIIO, "remote_handshake_port"),
        ),
        # Whether its blocks are free or not, it is not an engine of this pool.
        (NEWEST.replace("true", "false", 1), MORIIO, OtherConnector(NIXL, "remote_port")),
        ('{"transfer_id":null}', NIXL, OtherConnector(MORIIO, "transfer_id")),
    ],
)
def test_an_answer_of_the_other_connector_is_seen(
    params: str, pool: Connector, expected: OtherConnector
) -> None:
    """By a key that only that one has."""
    assert handed_over(answer(params), pool) == expected


@pytest.mark.parametrize(
    "params",
    [
        MORIIOS,
        '{"do_remote_prefill":true,"remote_port":1,"transfer_id":"tx-1"}',
        '{"do_remote_prefill":true,"remote_port":1,"remote_handshake_port":1}',
        OLDEST,
    ],
)
def test_an_answer_that_may_be_moriios_is_moriios_in_its_pool(params: str) -> None:
    """As long as nothing says otherwise: older versions left keys out."""
    assert isinstance(handed_over(answer(params), MORIIO), HandedOver)


# --- the request id


@pytest.mark.parametrize("version", [None, Version(0, 19), Version(0, 25), Version(0, 33)])
def test_the_id_is_clean_for_every_version(version: Version | None) -> None:
    """No engine with NIXL looks into it, so every API can be a pair, `/v1/responses` too."""
    ends = member(Role.PREFILL, NIXL, version), member(Role.DECODE, NIXL, version)
    assert request_id(Pair(ends[0], 0, ends[1], 0, "tx-1"), HEX) == HEX
    assert all(can_name_each_other(api, *ends) for api in Api)


@pytest.mark.parametrize(("version", "can"), [(None, False), (Version(0, 33), True)])
def test_responses_with_moriio_is_a_pair_by_version(version: Version | None, can: bool) -> None:
    """It ignores the id that would have to carry the addresses; the others do not."""
    ends = member(Role.PREFILL, MORIIO, version), member(Role.DECODE, MORIIO, version)
    assert can_name_each_other(Api.RESPONSES, *ends) is can
    assert can_name_each_other(Api.CHAT, *ends)
