"""What only a router may set reaches no engine, however it is written."""

import json

import pytest

from sidecar.wire.forbidden import FORBIDDEN, without_forbidden
from sidecar.wire.openai import BodyError, split


def test_what_only_a_router_may_set_is_stripped() -> None:
    """Engines dial the hosts that these fields name (protocol f14)."""
    body = split(b'{"a":1,"kv_transfer_params":{},"ec_transfer_params":{},"request_id":"x"}')
    assert without_forbidden(body) == split(b'{"a":1}')
    plain = split(b'{"a":1,"vllm_xargs":{"session_id":"s"}}')
    assert without_forbidden(plain) is plain


def test_a_name_that_is_written_with_escapes_is_the_same_name() -> None:
    """An engine reads it so."""
    assert without_forbidden(split(b'{"kv_transfer\\u005fparams":{}}')) == {}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("value", ["x", 1, {}, ["do_remote_prefill"]])
def test_what_is_hidden_in_xargs_is_refused(name: str, value: object) -> None:
    """Engines take it for their own; the refusal names it."""
    body = split(json.dumps({"vllm_xargs": {"a": 1, name: value}}).encode())
    with pytest.raises(BodyError, match=f"vllm_xargs must not have {name}"):
        without_forbidden(body)
    escaped = json.dumps({"vllm_xargs": {name: value}}).replace("_params", "\\u005fparams")
    with pytest.raises(BodyError):
        without_forbidden(split(escaped.encode()))


@pytest.mark.parametrize("xargs", ["null", "[]", '"kv_transfer_params"', "7"])
def test_xargs_that_are_no_object_are_for_the_engine_to_refuse(xargs: str) -> None:
    """They hide nothing."""
    body = split(b'{"vllm_xargs":%b}' % xargs.encode())
    assert without_forbidden(body) is body
