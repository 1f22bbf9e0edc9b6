"""What engines say of themselves: heartbeats, and answers of `/version` and `/v1/models`."""

from collections.abc import Callable
from typing import Any

import msgspec
from yarl import URL

from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Instance, Version
from sidecar.routing.model_card import ModelCard
from sidecar.wire.description import MAX_MODELS, MAX_NAME_CHARS, parse_models, parse_version
from sidecar.wire.heartbeat import (
    MAX_SIZE,
    REASONS,
    host_differs,
    parse_heartbeat,
    parse_zmq_address,
)
from sidecar.wire.names import as_ip, join_address, normal_host, parse_port, split_address
from tests.fuzz import reference


def check_heartbeat(data: bytes) -> None:
    """The payload as it comes off the wire."""
    _heard([b"id", data])
    _heard([data])


def check_heartbeat_map(data: bytes) -> None:
    """The same from JSON text, which a fuzzer writes more easily: past MessagePack, at the keys."""
    try:
        record = msgspec.json.decode(data)
        payload = msgspec.msgpack.encode(record)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return
    _heard([b"id", payload])


def _heard(frames: list[bytes]) -> None:
    try:
        instance = parse_heartbeat(frames)
    except HeartbeatError as error:
        _is_fit_for_a_log(error)
        return
    if instance is not None:
        _is_usable(instance)


def _is_fit_for_a_log(error: HeartbeatError) -> None:
    assert error.reason in REASONS
    assert len(str(error)) < 1000
    assert "\n" not in str(error)


def _is_usable(instance: Instance) -> None:
    host, port = split_address(instance.address)
    assert join_address(host, port) == instance.address, "not its one spelling"
    assert normal_host(instance.kv_host) == instance.kv_host
    assert 1 <= instance.dp_size <= MAX_SIZE
    assert 1 <= instance.tp_size <= MAX_SIZE
    assert 1 <= instance.handshake_port <= 65535
    assert 1 <= instance.notify_port <= 65535
    url = URL(instance.base_url)
    assert (url.port, url.path) == (port, "/v1"), "the prober would ask somewhere else"
    assert parse_zmq_address(instance.zmq_address)[1:] == (
        instance.handshake_port,
        instance.notify_port,
    )
    host_differs(instance, "10.0.0.1")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(instance), type=Instance) == instance


def check_address(data: bytes) -> None:
    """Names of hosts and ports, one spelling for each."""
    text = data.decode("utf-8", "surrogateescape")
    as_ip(text)
    found = _parsed(split_address, text, ValueError)
    if found is not None:
        assert normal_host(found[0]) == found[0]
        assert split_address(join_address(*found)) == found
    said = _parsed(parse_zmq_address, text, HeartbeatError)
    if said is not None:
        assert normal_host(said[0]) == said[0]
    port = _parsed(parse_port, text, ValueError)
    assert port is None or (1 <= port <= 65535 and str(port) == text.lstrip("0"))


def _parsed(parse: Callable[[str], Any], text: str, error: type[Exception]) -> Any:
    try:
        return parse(text)
    except error:
        return None


def check_version(data: bytes) -> None:
    version = parse_version(data)
    assert version is None or (isinstance(version, Version) and version >= Version(0, 0))
    if version is not None:
        assert max(version.major, version.minor) < 10_000


def check_models(data: bytes) -> None:
    cards = parse_models(data)
    assert len(cards) == len({card.name for card in cards}) <= MAX_MODELS
    for card in cards:
        assert 0 < len(card.name) <= MAX_NAME_CHARS
        card.name.encode()  # it becomes a label, and JSON
        assert not card.said or reference.read(card.said.encode())["id"] == card.name
        assert card.parent is None or isinstance(card.parent, str)
        for number in (card.max_model_len, card.created):
            assert number is None or number > 0
    # As they are told to the workers, and kept over a restart.
    packed = msgspec.msgpack.encode(cards)
    assert msgspec.msgpack.decode(packed, type=tuple[ModelCard, ...]) == cards
