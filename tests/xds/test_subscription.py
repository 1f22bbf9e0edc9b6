"""One ADS stream against a model of Envoy, and rule by rule."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.xds.snapshot import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTES,
    SEND_ORDER,
    Resources,
    Snapshot,
)
from sidecar.xds.subscription import Acked, Effect, Nacked, Request, Response, Subscription

NAMES = {CLUSTER: (), ENDPOINTS: ("engines",), LISTENER: (), ROUTES: ("edge",)}


def snapshot(**versions: int) -> Snapshot:
    """`cluster=2`, `endpoints=3` …: contents; endpoints n means the addresses 1 to n."""
    content = {t: versions.get(k, 1) for t, k in zip(SEND_ORDER, KINDS, strict=True)}
    names = {CLUSTER: "c", ENDPOINTS: "engines", LISTENER: "l", ROUTES: "edge"}
    types = {t: Resources.of({names[t]: str(n).encode()}) for t, n in content.items()}
    return Snapshot.of(types, (), [f"10.0.0.{i + 1}:80" for i in range(content[ENDPOINTS])])


KINDS = ("cluster", "endpoints", "listener", "routes")


def sent(effects: Iterable[Effect]) -> list[Response]:
    return [e for e in effects if isinstance(e, Response)]


def types(effects: Iterable[Effect]) -> list[str]:
    return [r.type_url for r in sent(effects)]


def first(type_url: str, version: str = "") -> Request:
    return Request(type_url=type_url, names=NAMES[type_url], version=version)


def answer(response: Response, error: str | None = None) -> Request:
    return Request(
        type_url=response.type_url,
        version="" if error else response.version,
        nonce=response.nonce,
        names=NAMES[response.type_url],
        error=error,
    )


def settled(of: Snapshot) -> tuple[Subscription, dict[str, Response]]:
    """A stream on which every type of `of` has been sent and ACKed."""
    stream = Subscription(of)
    last: dict[str, Response] = {}
    for type_url in SEND_ORDER:
        effects = stream.on_request(first(type_url))
        while responses := sent(effects):
            last[type_url] = responses[0]
            effects = stream.on_request(answer(responses[0]))
    return stream, last


def test_a_first_request_is_answered_and_its_answer_is_an_ack() -> None:
    stream = Subscription(snapshot())
    (response,) = sent(stream.on_request(first(CLUSTER)))
    assert response.version == snapshot().version(CLUSTER)
    assert stream.acked_version(CLUSTER) is None
    assert stream.on_request(answer(response)) == [Acked(CLUSTER, response.version)]
    assert stream.acked_version(CLUSTER) == response.version


def test_before_there_is_a_snapshot_requests_wait_for_it() -> None:
    stream = Subscription()
    assert stream.on_request(first(LISTENER)) == []
    assert stream.on_request(first(CLUSTER)) == []
    assert types(stream.on_snapshot(snapshot())) == [CLUSTER, LISTENER]


def test_everything_due_goes_in_the_order_make_before_break() -> None:
    stream, _ = settled(snapshot())
    effects = stream.on_snapshot(snapshot(cluster=2, endpoints=2, listener=2, routes=2))
    assert types(effects) == list(SEND_ORDER)


def test_an_equal_snapshot_sends_nothing() -> None:
    stream, _ = settled(snapshot())
    assert stream.on_snapshot(snapshot()) == []


@pytest.mark.parametrize(
    ("kind", "follow"), [("cluster", [CLUSTER, ENDPOINTS]), ("listener", [LISTENER, ROUTES])]
)
def test_what_is_referred_to_follows_although_unchanged(kind: str, follow: list[str]) -> None:
    stream, _ = settled(snapshot())
    assert types(stream.on_snapshot(snapshot(**{kind: 2}))) == follow


def test_endpoints_still_awaited_follow_the_cluster_after_their_answer() -> None:
    stream, _ = settled(snapshot())
    (pending,) = sent(stream.on_snapshot(snapshot(endpoints=2)))
    assert types(stream.on_snapshot(snapshot(endpoints=2, cluster=2))) == [CLUSTER]
    assert types(stream.on_request(answer(pending))) == [ENDPOINTS]


def test_a_request_with_the_settled_nonce_asks_again_and_is_answered() -> None:
    stream, last = settled(snapshot())
    (again,) = sent(stream.on_request(answer(last[ENDPOINTS])))
    assert again.nonce != last[ENDPOINTS].nonce
    assert sent(stream.on_request(answer(again))) == []


def test_a_stale_nonce_is_ignored() -> None:
    stream, last = settled(snapshot())
    (pending,) = sent(stream.on_snapshot(snapshot(endpoints=2)))
    assert stream.on_request(answer(last[ENDPOINTS])) == []
    assert stream.is_outstanding(ENDPOINTS)
    assert stream.on_request(answer(pending)) == [Acked(ENDPOINTS, pending.version)]


def test_one_answer_is_outstanding_at_a_time_and_a_burst_is_sent_as_its_last() -> None:
    stream, _ = settled(snapshot())
    (pending,) = sent(stream.on_snapshot(snapshot(endpoints=2)))
    assert stream.on_snapshot(snapshot(endpoints=3)) == []
    assert stream.on_snapshot(snapshot(endpoints=4)) == []
    (latest,) = sent(stream.on_request(answer(pending)))
    assert latest.version == snapshot(endpoints=4).version(ENDPOINTS)


def test_a_nack_keeps_the_last_good_and_is_not_sent_again() -> None:
    stream, last = settled(snapshot())
    (bad,) = sent(stream.on_snapshot(snapshot(endpoints=2)))
    assert stream.on_request(answer(bad, "no")) == [Nacked(ENDPOINTS, bad.version, "no")]
    assert stream.acked_version(ENDPOINTS) == last[ENDPOINTS].version
    assert stream.rejection(ENDPOINTS) == "no"
    assert stream.on_snapshot(snapshot(endpoints=2)) == []
    (good,) = sent(stream.on_snapshot(snapshot()))
    stream.on_request(answer(good))
    assert stream.rejection(ENDPOINTS) is None


def test_other_names_are_answered() -> None:
    stream, last = settled(snapshot())
    request = Request(type_url=ROUTES, nonce=last[ROUTES].nonce, names=("edge", "other"))
    assert types(stream.on_request(request)) == [ROUTES]


def test_a_named_type_without_names_or_with_unknown_ones_is_not_answered() -> None:
    stream = Subscription(snapshot())
    assert stream.on_request(Request(type_url=ENDPOINTS)) == []
    assert stream.on_request(Request(type_url=ROUTES, names=("other",))) == []


def test_a_star_asks_for_all() -> None:
    stream = Subscription(snapshot())
    (response,) = sent(stream.on_request(Request(type_url=ENDPOINTS, names=("*",))))
    assert response.resources == (b"1",)


def test_an_unknown_type_is_not_answered() -> None:
    assert Subscription(snapshot()).on_request(Request(type_url="x/y.Secret")) == []


def test_after_a_reconnect_a_known_version_counts_as_acked_and_is_sent_all_the_same() -> None:
    stream = Subscription(snapshot(endpoints=2))
    effects = stream.on_request(first(ENDPOINTS, snapshot(endpoints=2).version(ENDPOINTS)))
    assert effects[0] == Acked(ENDPOINTS, snapshot(endpoints=2).version(ENDPOINTS))
    assert types(effects) == [ENDPOINTS]
    assert stream.acked_endpoints() == {"10.0.0.1:80", "10.0.0.2:80"}


def test_after_a_reconnect_a_foreign_version_says_nothing() -> None:
    stream = Subscription(snapshot())
    assert types(stream.on_request(first(ENDPOINTS, "other"))) == [ENDPOINTS]
    assert stream.acked_endpoints() == frozenset()


def test_while_an_answer_is_awaited_only_endpoints_of_both_lists_are_certain() -> None:
    stream, _ = settled(snapshot(endpoints=3))
    (smaller,) = sent(stream.on_snapshot(snapshot(endpoints=1)))
    stream.on_snapshot(snapshot(endpoints=3))
    assert stream.acked_endpoints() == {"10.0.0.1:80"}
    (back,) = sent(stream.on_request(answer(smaller)))
    assert stream.acked_endpoints() == {"10.0.0.1:80"}
    stream.on_request(answer(back))
    assert len(stream.acked_endpoints()) == 3


events = st.one_of(
    st.tuples(st.just("publish"), st.tuples(*[st.integers(1, 4)] * 4)),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("ask again"), st.sampled_from(SEND_ORDER)),
)


@given(st.lists(events, max_size=60))
def test_an_envoy_ends_with_the_newest_version_it_accepts(script: list[tuple[str, object]]) -> None:
    """Whatever comes between: one answer outstanding a type, no reply to a settled stream, and when
    Envoy accepts what is left it has the last snapshot."""
    stream = Subscription(snapshot())
    queue: list[Response] = []
    last: dict[str, Response] = {}
    newest = snapshot()

    def take(effects: list[Effect]) -> None:
        queue.extend(sent(effects))
        assert len({r.type_url for r in queue}) == len(queue), "two outstanding of one type"

    for type_url in SEND_ORDER:
        take(stream.on_request(first(type_url)))
    for what, argument in script:
        if what == "publish":
            newest = snapshot(**dict(zip(KINDS, argument, strict=True)))
            take(stream.on_snapshot(newest))
        elif what == "answer" and queue:
            response = queue.pop(0)
            last[response.type_url] = response
            take(stream.on_request(answer(response, None if argument else "refused")))
        elif what == "ask again" and argument in last:
            take(stream.on_request(answer(last[argument])))
    steps = 0
    while queue:
        take(stream.on_request(answer(queue.pop(0))))
        steps += 1
        assert steps < 20, "the stream never settles"
    for type_url in SEND_ORDER:
        if stream.rejection(type_url) is None:
            assert stream.acked_version(type_url) == newest.version(type_url)
    if stream.rejection(ENDPOINTS) is None:
        assert stream.acked_endpoints() == newest.endpoints
