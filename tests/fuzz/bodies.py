"""Clients' bodies: split, judged, and sent on in both legs; against the parser of the engines."""

import json
from typing import Any

from sidecar.exchange.intake import Refusal, Request, read_request
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Connector, TransferMode
from sidecar.routing.model_card import ModelCard
from sidecar.wire import kv_transfer, openai
from sidecar.wire.forbidden import FORBIDDEN
from sidecar.wire.paths import Api
from sidecar.wire.transferable import can_transfer
from tests.exchange.exchange_driver import ID, KV, NIXL_KV, READY, decode, prefill
from tests.fuzz import reference

LIMITS = Limits(max_body_bytes=1 << 20)
SEVERAL = Situation(
    has_prefill=True,
    has_decode=True,
    cards=(ModelCard("l", max_model_len=100), ModelCard("m")),
    default_model=None,
)
"""a pool of more than one model, so that each request must name its own"""
PAIR = kv_transfer.Pair(
    prefill=prefill().member,
    prefill_rank=1,
    decode=decode().member,
    decode_rank=0,
    transfer_id="tx-ours",
)
PULLED = kv_transfer.Pair(
    prefill=prefill(connector=Connector.NIXL).member,
    prefill_rank=1,
    decode=decode(connector=Connector.NIXL).member,
    decode_rank=0,
    transfer_id="tx-never-sent",
)
"""of engines with NIXL"""
PREFILL_MAY_CHANGE = {
    "kv_transfer_params", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens",
    "min_tokens", "ignore_eos", "n",
}  # fmt: skip


def check_body(data: bytes) -> None:
    """Split, and all that is asked of the fields."""
    try:
        fields = openai.split(data)
    except openai.BodyError as error:
        _is_fairly_refused(data, str(error))
        return
    for api in Api:
        for context_tokens in (None, 100):
            can_transfer(fields, api, context_tokens)
    for name in (*fields, "model", "n"):
        openai.text(fields, name), openai.is_true(fields, name), openai.is_set(fields, name)
    again = openai.join(fields)
    assert openai.split(again) == fields, "joined, it is another object"
    seen = engine_sees(data)
    if seen is not None:
        _agrees(fields, seen, again)


def _is_fairly_refused(data: bytes, reason: str) -> None:
    assert 0 < len(reason) < 400, "not a reason for a client to read"
    assert not _is_plain_object(data), f"refused, though it is a JSON object: {reason}"


def _is_plain_object(data: bytes) -> bool:
    try:
        return isinstance(reference.read_strictly(data), dict)
    except (ValueError, RecursionError):
        return False


def engine_sees(data: bytes) -> dict[str, Any] | None:
    """None: it refuses what we let pass. That may be text that is no UTF-8 in a value, or nesting
    at the limit; never anything that has another shape."""
    try:
        seen = reference.read(data)
    except (UnicodeDecodeError, RecursionError):
        return None
    assert isinstance(seen, dict), "the engine does not see an object"
    return seen


def _agrees(fields: openai.Fields, seen: dict[str, Any], joined: bytes) -> None:
    assert list(fields) == list(seen), "other members than the engine sees"
    same(reference.read(joined), seen)
    for name, value in seen.items():
        same(reference.read(bytes(fields[name])), value)
        assert openai.is_true(fields, name) == (value is True)
        assert openai.is_set(fields, name) == (value is not None and value is not False)
        text = openai.text(fields, name)
        assert text == value if isinstance(value, str) and text is not None else text is None
    for api in Api:
        if _is_surely_many(seen, api):
            assert not can_transfer(fields, api), "one transfer cannot carry it"


def same(one: object, other: object) -> None:
    assert repr(one) == repr(other)  # not ==: a number that is none (1e999 - 1e999) is not itself


def _is_surely_many(seen: dict[str, Any], api: Api) -> bool:
    """As an engine would count: more than one sequence, or tokens of the prompt in the answer."""
    if any(isinstance(seen.get(name), int) and seen[name] > 1 for name in ("n", "best_of")):
        return True
    if seen.get("use_beam_search") is True or seen.get("echo") is True:
        return True
    prompt = seen.get("prompt") if api is Api.COMPLETIONS else None
    is_list = isinstance(prompt, list) and len(prompt) > 1
    return is_list and all(isinstance(one, str | list) for one in prompt)


def check_request(data: bytes) -> None:
    """Read, then both legs of every API built: no field that only a router may set comes through
    from the client, and nothing else is changed."""
    for api in Api:
        request = read_request(ID, api, {}, data, READY, LIMITS)
        named = read_request(ID, api, {}, data, SEVERAL, LIMITS)
        if isinstance(request, Refusal):
            assert isinstance(named, Refusal)
            continue
        assert isinstance(named, Request) or not request.model, "refused, though it names a model"
        for mode in TransferMode:
            leg = kv_transfer.prefill_body(request.fields, api, PAIR, mode)
            _check_leg(data, leg, PREFILL_MAY_CHANGE)
        pulled = kv_transfer.prefill_body(request.fields, api, PULLED, TransferMode.READ)
        _check_leg(data, pulled, PREFILL_MAY_CHANGE, transfer_id=None)
        _check_leg(
            data, kv_transfer.decode_body_write(request.fields, PAIR), {"kv_transfer_params"}
        )
        for pair, answer, transfer_id in ((PAIR, KV, "tx-p"), (PULLED, NIXL_KV, None)):
            given = kv_transfer.handed_over(answer, pair.connector)
            assert isinstance(given, kv_transfer.HandedOver)
            leg = kv_transfer.decode_body_read(request.fields, pair, given)
            _check_leg(data, leg, {"kv_transfer_params"}, transfer_id=transfer_id)
        _check_leg(data, openai.join(request.fields), set(), has_params=False)


def _check_leg(
    data: bytes,
    leg: bytes,
    may_change: set[str],
    *,
    has_params: bool = True,
    transfer_id: str | None = PAIR.transfer_id,
) -> dict[str, Any] | None:
    """The leg as the engine sees it; None where the engine would refuse it, as it would the
    client's own body."""
    seen = engine_sees(data)
    if seen is None:
        return None
    sent = reference.read(leg)
    names = [name for name, _ in json.loads(leg, parse_int=str, object_pairs_hook=list)]
    assert len(names) == len(set(names)), "a repeated member: parsers differ about which counts"
    assert ("kv_transfer_params" in sent) is has_params
    if has_params:
        params = sent["kv_transfer_params"]
        assert isinstance(params["do_remote_decode"], bool), "the client's own parameters"
        assert params.get("transfer_id") == transfer_id
    for name in ("ec_transfer_params", "request_id"):
        assert name not in sent, f"{name} of the client reaches an engine"
    hidden = sent.get("vllm_xargs")
    assert not isinstance(hidden, dict) or not set(FORBIDDEN) & hidden.keys()
    for name in sent.keys() - may_change:
        same(sent[name], seen[name])
    return sent
