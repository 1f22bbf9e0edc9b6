"""Inputs that are right in form, so that every check behind the first is reached."""

import msgspec
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.exchange.intake import Request, read_request
from sidecar.wire.forbidden import FORBIDDEN
from sidecar.wire.paths import SUFFIX, Api
from tests.exchange.exchange_driver import ID, READY
from tests.fuzz.bodies import LIMITS, check_body, check_request
from tests.fuzz.envoy_words import check_access_log, check_ext_proc, check_trail
from tests.fuzz.exchanges import check_exchange, check_prefill_answer
from tests.fuzz.registrations import check_heartbeat, check_models, check_version
from tests.fuzz.targets import FIELDS, KEYS

some = settings(max_examples=100, deadline=None)

# --- JSON text, with what a writer is free to do

blanks = st.sampled_from(("", "", "", " ", "\n", "\t \r"))
plain_names = st.sampled_from([name for name in FIELDS if "\\" not in name]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=3
)
numbers = st.sampled_from(
    ("0", "-0", "1", "2", "1.0", "1e0", "-1", "1e999", "0.1E-5", "9" * 30, "2147483648")
)
texts = st.sampled_from(('""', '"m"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\/\\n"', '"é"', '"true"'))
scalars = numbers | texts | st.sampled_from(("null", "true", "false"))


@st.composite
def names(draw: st.DrawFn) -> str:
    """A member's name in quotes, some of its characters as escapes."""
    name = draw(plain_names)
    escaped = draw(st.sets(st.integers(0, max(0, len(name) - 1)), max_size=3))
    return '"' + "".join(_escape(c) if i in escaped else c for i, c in enumerate(name)) + '"'


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _listed(items: list[str], brackets: str) -> str:
    return brackets[0] + ",".join(items) + brackets[1]


def _object(members: list[tuple[str, str, str]]) -> str:
    return "{" + ",".join(f"{gap}{name}{gap}:{gap}{v}{gap}" for name, v, gap in members) + "}"


def members(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An object; names may be repeated."""
    return st.lists(st.tuples(names(), values, blanks), max_size=5).map(_object)


values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(lambda v: _listed(v, "[]")) | members(inner),
    max_leaves=5,
)
objects = members(values)
odd_objects = members(values | st.sampled_from(("NaN", "-Infinity", '"\\ud800"', "01", "[1,]", "")))


@some
@given(objects)
def test_a_json_object_is_taken_however_it_is_written(text: str) -> None:
    """No escape, gap or repeated name is a reason to refuse, or lets a forbidden field through."""
    check_body(text.encode())
    check_request(text.encode())
    request = read_request(ID, Api.CHAT, {}, text.encode(), READY, LIMITS)
    assert not isinstance(request, Request) or not set(FORBIDDEN) & set(request.fields)


@some
@given(odd_objects, st.sampled_from(("utf-8", "utf-8-sig", "utf-16", "utf-32-le", "latin-1")))
def test_what_only_python_takes_for_json_is_refused_or_read_as_python_does(
    text: str, encoding: str
) -> None:
    """Nobody sees a second object in a body, whatever its engine's parser makes of it."""
    data = text.encode(encoding, "replace")
    check_body(data)
    check_request(data)


@some
@given(st.sampled_from([*(f"/v1{suffix}" for suffix in SUFFIX.values()), "/tokenize"]), objects)
def test_a_request_is_placed_or_refused(path: str, body: str) -> None:
    """Whatever its fields: no event is illegal and nothing stays taken."""
    check_exchange(f"POST {path}\n\n{body}".encode())


@some
@given(objects, st.booleans())
def test_prefill_may_answer_any_object(text: str, says_so: bool) -> None:
    """It handed KV over exactly if it says so."""
    more = '"do_remote_prefill":true,' if says_so else ""
    params = "{" + more + text[1:] if text != "{}" else "{" + more.rstrip(",") + "}"
    check_prefill_answer(b'{"kv_transfer_params":' + params.encode() + b"}")


# --- MessagePack maps

said = st.one_of(
    st.sampled_from([*KEYS, "10.0.0.1:80", "host:[::1],handshake:1,notify:2", "http://a:1/x"]),
    st.integers(-1, 70000),
    st.none(),
    st.booleans(),
    st.floats(),
    st.binary(max_size=4),
    st.text(max_size=8),
)
records = st.dictionaries(st.sampled_from(KEYS), said) | st.dictionaries(said, said, max_size=4)
kinds = st.sampled_from(("register", "P", "D", "HELLO", "x"))
complete = st.fixed_dictionaries(
    {"type": kinds, **dict.fromkeys(KEYS[2:11], said)}  # every key a shape may want
)


@some
@given(records | complete)
def test_a_heartbeat_may_say_anything(record: dict[object, object]) -> None:
    """It is an instance that can be reached, or a HeartbeatError of a known reason."""
    check_heartbeat(msgspec.msgpack.encode(record))


# --- what engines say of themselves


@some
@given(st.text(max_size=12) | st.from_regex(r"v?\d{1,5}\.\d{1,5}(\.\d+)?", fullmatch=True))
def test_a_version_may_be_any_text(text: str) -> None:
    """Unknown is a value."""
    check_version(msgspec.json.encode({"version": text}))


@some
@given(st.lists(objects, max_size=3), names())
def test_a_list_of_models_may_have_any_entries(entries: list[str], name: str) -> None:
    """Those that can be understood are taken, or none."""
    entries.append('{"id":' + name + "}")
    check_models(f'{{"data":{_listed(entries, "[]")}}}'.encode())


# --- protobuf messages of Envoy

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ("200", "-", "9" * 500, "٣", "1e5", "-1", "via_upstream")
)
tags = st.dictionaries(st.sampled_from(("ex", "rec", "reply", "total_us", "ttfb_us")), words)


@some
@given(tags, words, st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 9))
def test_an_access_log_entry_may_have_any_values(
    tags: dict[str, str], details: str, number: int, seconds: int, kind: int
) -> None:
    """The entry still tells of its exchange."""
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.custom_tags.update(tags)
    common.duration.seconds = seconds
    common.access_log_type = kind
    common.upstream_remote_address.socket_address.address = details
    common.upstream_remote_address.socket_address.port_value = number
    entry.response.response_code.value = number
    entry.response.response_code_details = details
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.append(entry)
    check_access_log(message.SerializeToString())


@some
@given(
    st.lists(st.tuples(st.sampled_from((":status", ":path", ":method", "x", "")), st.binary())),
    st.booleans(),
)
def test_headers_from_envoy_may_have_any_values(
    pairs: list[tuple[str, bytes]], is_answer: bool
) -> None:
    """The exchange begins, or is refused."""
    request = pb.ProcessingRequest()
    half = request.response_headers if is_answer else request.request_headers
    half.SetInParent()
    for name, value in pairs:
        half.headers.headers.add(key=name).raw_value = value
    check_ext_proc(request.SerializeToString())


@some
@given(st.lists(values, min_size=5, max_size=9))
def test_a_trail_may_be_any_list(items: list[str]) -> None:
    """A trail or none."""
    check_trail(_listed(items, "[]").encode())
