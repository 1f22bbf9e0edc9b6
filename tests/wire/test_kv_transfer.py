"""The bodies and ids of both legs with MoRI-IO, key by key as protocol b and c have them."""

import json
import re
from typing import Any

import pytest

from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.view import Member
from sidecar.wire.kv_transfer import (
    HandedOver,
    Pair,
    decode_body_read,
    decode_body_write,
    handed_over,
    prefill_body,
    request_id,
)
from sidecar.wire.moriio import embeds_addresses
from sidecar.wire.openai import split
from sidecar.wire.paths import Api

READ, WRITE = TransferMode.READ, TransferMode.WRITE
HEX = "0123456789abcdef0123456789abcdef"
# The connector's own, moriio_common.py 453-456 (protocol b).
PREFILL_ADDRESS = re.compile(r"___prefill_addr_(.+?)___decode_addr_")
DECODE_ADDRESS = re.compile(r"___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$")


def member(role: Role, host: str, version: Version | None = None, **sizes: int) -> Member:
    bracketed = f"[{host}]" if ":" in host else host
    return Member(
        instance=Instance(
            address=f"{bracketed}:8000",
            role=role,
            transfer_mode=WRITE,
            kv_host=host,
            handshake_port=6301 if role is Role.PREFILL else 7301,
            notify_port=61005 if role is Role.PREFILL else 62005,
            **sizes,
        ),
        ordinal=0,
        endpoint=f"{bracketed}:8000",
        state=State.READY,
        is_placeable=True,
        version=version,
    )


def pair(
    versions: tuple[Version | None, Version | None] = (Version(0, 33), Version(0, 33)),
    hosts: tuple[str, str] = ("10.0.0.1", "10.0.0.2"),
) -> Pair:
    return Pair(
        prefill=member(Role.PREFILL, hosts[0], versions[0], dp_size=8, tp_size=1),
        prefill_rank=3,
        decode=member(Role.DECODE, hosts[1], versions[1], dp_size=1, tp_size=4),
        decode_rank=0,
        transfer_id="tx-1",
    )


def params(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["kv_transfer_params"]
    return found


def given(answer: bytes) -> HandedOver:
    """What an answer of prefill hands over."""
    found = handed_over(answer, Connector.MORIIO)
    assert isinstance(found, HandedOver)
    return found


PLAIN = split(b'{"model":"m","prompt":"hi"}')
LEAST = b'{"kv_transfer_params":{"do_remote_prefill":true}}'


# --- the parameters


def test_prefill_in_read() -> None:
    """What it must return, and the other side's sizes; it dials nobody, so no address."""
    assert params(prefill_body(PLAIN, Api.COMPLETIONS, pair(), READ)) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "tx-1",
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": 1,
        "remote_tp_size": 4,
    }


def test_prefill_in_write() -> None:
    """It pushes to decode: decode's address and sizes; the null keys must be there (protocol c)."""
    assert params(prefill_body(PLAIN, Api.COMPLETIONS, pair(), WRITE)) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "tx-1",
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": 1,
        "remote_tp_size": 4,
        "remote_host": "10.0.0.2",
        "remote_handshake_port": 7301,
        "remote_notify_port": 62005,
    }


def test_decode_in_write() -> None:
    """It is the one that must notify, at prefill's rank and address."""
    assert params(decode_body_write(PLAIN, pair())) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": "tx-1",
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": 8,
        "remote_tp_size": 1,
        "remote_dp_rank": 3,
        "is_request_leader": True,
        "remote_host": "10.0.0.1",
        "remote_handshake_port": 6301,
        "remote_notify_port": 61005,
    }


def test_decode_in_read_forwards_what_prefill_returned() -> None:
    """Verbatim, unknown keys and huge block ids too. Of its ranks it knows more than was
    registered; only its TP size it says under another name."""
    answer = (
        b'{"kv_transfer_params" : {"do_remote_prefill": true, "do_remote_decode":false,'
        b'"remote_block_ids":[[1, 2],[3]], "remote_engine_id":"10.9.9.9:6301","remote_dp_rank":5,'
        b'"remote_dp_rank_override":true,"remote_host":"10.9.9.9","remote_handshake_port":"6301",'
        b'"remote_notify_port":61005,"remote_dp_size":1,"tp_size":1,"transfer_id":"tx-1",'
        b'"remote_prefill_cached_tokens":64,"new_key":1e2}}'
    )
    body = decode_body_read(PLAIN, pair(), given(answer))
    assert b"[[1, 2],[3]]" in body
    assert b'"new_key":1e2' in body
    assert params(body) == json.loads(answer)["kv_transfer_params"] | {"remote_tp_size": 1}


def test_decode_in_read_fills_in_what_an_older_prefill_left_out() -> None:
    """The address, the rank and the id come from the registration and the placement."""
    answer = b'{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1]}}'
    assert params(decode_body_read(PLAIN, pair(), given(answer))) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [1],
        "remote_engine_id": None,
        "remote_dp_rank": 3,
        "remote_dp_size": 8,
        "remote_tp_size": 1,
        "remote_host": "10.0.0.1",
        "remote_handshake_port": 6301,
        "remote_notify_port": 61005,
        "transfer_id": "tx-1",
    }


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"kv_transfer_params":null}',
        b'{"kv_transfer_params":[]}',
        b'{"kv_transfer_params":"x"}',
        b'{"kv_transfer_params":{}}',
        b'{"kv_transfer_params":{"do_remote_prefill":false}}',
        b'{"kv_transfer_params":{"do_remote_prefill":null}}',
    ],
)
def test_no_kv_was_handed_over(answer: bytes) -> None:
    """Null, absent, or no JSON at all: prefill freed its blocks."""
    for connector in Connector:
        assert handed_over(answer, connector) is None


# --- the bodies

SHAPES_THE_PROMPT = (
    b'{"messages" : [ {"role":"user","content":"\\u00e9 \\ud83d\\ude00 \\/"} ],'
    b'"tools":[{"a": 1.00}],"tool_choice":"auto","chat_template_kwargs":{ "x" : null },'
    b'"add_generation_prompt":true,"documents":[],"response_format":{"type":"json_object"},'
    b'"truncate_prompt_tokens":12345678901234567890123,"cache_salt":"s","priority":-1,'
    b'"seed":1e2,"messages":[{"role":"user","content":"the last counts"}]}'
)


@pytest.mark.parametrize("mode", TransferMode)
def test_what_shapes_the_prompt_is_the_same_to_the_byte_on_both_legs(mode: TransferMode) -> None:
    """Escapes, long numbers, white space and repeated keys: another prompt, another KV cache."""
    fields = split(SHAPES_THE_PROMPT)
    first = split(prefill_body(fields, Api.CHAT, pair(), mode))
    second = split(
        decode_body_write(fields, pair())
        if mode is WRITE
        else decode_body_read(fields, pair(), given(LEAST))
    )
    for name, value in fields.items():
        assert bytes(first[name]) == bytes(second[name]) == bytes(value)
    assert set(second) - set(fields) == {"kv_transfer_params"}


LIMITED = (
    b'{"model":"m","max_tokens":100,"max_completion_tokens":90,"max_output_tokens":80,'
    b'"min_tokens":10,"ignore_eos":false,"n":1,"stream":true,"stream_options":{"a":1},"stop":["x"],'
    b'"stop_token_ids":[1],"stop_sequences":["y"],"logprobs":5,"top_logprobs":2,"echo":false,'
    b'"prompt_logprobs":null}'
)


@pytest.mark.parametrize(
    ("api", "expected"),
    [
        (
            Api.COMPLETIONS,
            {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "ignore_eos": True},
        ),
        (Api.CHAT, {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1}),
        (Api.RESPONSES, {"max_output_tokens": 1, "max_tokens": 100}),
        (Api.MESSAGES, {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 10}),
    ],
)
def test_prefill_makes_one_token_whole(api: Api, expected: dict[str, object]) -> None:
    """One token, no stream, nothing that would end it by anything but its length."""
    leg = json.loads(prefill_body(split(LIMITED), api, pair(), READ))
    assert {k: leg[k] for k in expected} == expected
    assert leg["stream"] is False
    dropped = {"stream_options", "stop", "stop_token_ids", "stop_sequences", "logprobs"}
    assert not leg.keys() & (dropped | {"top_logprobs", "echo", "prompt_logprobs"})


def test_prefill_gets_no_limit_that_its_api_does_not_know() -> None:
    """`max_completion_tokens` only where the client sent it; Anthropic's shape has no `n`."""
    chat = json.loads(prefill_body(split(b'{"messages":[]}'), Api.CHAT, pair(), READ))
    assert chat.keys() == {
        *("messages", "max_tokens", "min_tokens", "ignore_eos", "n", "stream"),
        "kv_transfer_params",
    }
    messages = json.loads(prefill_body(split(b'{"messages":[]}'), Api.MESSAGES, pair(), READ))
    assert messages.keys() == {"messages", "max_tokens", "stream", "kv_transfer_params"}
    responses = json.loads(prefill_body(split(b'{"input":"x"}'), Api.RESPONSES, pair(), READ))
    assert responses.keys() == {
        "input", "max_output_tokens", "ignore_eos", "stream", "kv_transfer_params"
    }  # fmt: skip


def test_decode_keeps_the_clients_limits() -> None:
    """Decode makes every token, the first one again: nothing is taken off."""
    fields = split(LIMITED)
    write, read = decode_body_write(fields, pair()), decode_body_read(fields, pair(), given(LEAST))
    for body in (write, read):
        leg = split(body)
        del leg["kv_transfer_params"]
        assert leg == fields


# --- the request id


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (Version(0, 33), Version(0, 33), False),
        (Version(0, 32), Version(0, 33), False),
        (Version(1, 0), Version(1, 0), False),
        (Version(0, 19), Version(0, 19), False),
        (Version(0, 19), Version(0, 33), False),
        (Version(0, 18), Version(0, 25), False),
        (Version(0, 20), Version(0, 20), True),
        (Version(0, 31), Version(0, 33), True),
        (Version(0, 33), Version(0, 31), True),
        (None, Version(0, 33), True),
        (Version(0, 33), None, True),
        (None, None, True),
    ],
)
def test_the_older_engine_of_the_pair_decides_the_form_of_the_id(
    prefill: Version | None, decode: Version | None, expected: bool
) -> None:
    """0.20 to 0.31 and unknown ones need the addresses in it, all others a clean one."""
    assert embeds_addresses((prefill, decode)) is expected
    found = request_id(pair((prefill, decode)), HEX)
    assert (found != HEX) is expected


@pytest.mark.parametrize("hosts", [("10.0.0.1", "10.0.0.2"), ("fd00::1", "node-2.example")])
@pytest.mark.parametrize(
    "internal", ["cmpl-{}-0-deadbeef", "chatcmpl-{}-deadbeef", "1_cmpl-{}-0-deadbeef", "{}"]
)
def test_both_of_the_connectors_patterns_find_their_address(
    hosts: tuple[str, str], internal: str
) -> None:
    """In every shape that vLLM gives the id (protocol b); the addresses are the registered ones."""
    found = internal.format(request_id(pair((Version(0, 25),) * 2, hosts), HEX))
    first, second = PREFILL_ADDRESS.search(found), DECODE_ADDRESS.search(found)
    assert first is not None
    assert second is not None
    assert first[1] == f"host:{hosts[0]},handshake:6301,notify:61005"
    assert second[1] == f"host:{hosts[1]},handshake:7301,notify:62005"
