"""The YAML files and settings give one consistent snapshot, the same in every process."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2
from google.protobuf.message import Message

from sidecar.errors import SnapshotError
from sidecar.xds.bootstrap import bootstrap_document, bootstrap_hash
from sidecar.xds.resources import Templates, build_snapshot, with_endpoints
from sidecar.xds.settings import EdgeSettings
from sidecar.xds.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, SEND_ORDER, Snapshot
from sidecar.xds.templates import Template

FILES = Path(__file__).parents[2] / "envoy"
SETTINGS = EdgeSettings(node_id="n", control_socket="/c", worker_sockets=("/w0", "/w1"))


def template(name: str, old: str = "", new: str = "") -> Template:
    text = (FILES / name).read_text()
    assert old in text
    return Template.parse(name, text.replace(old, new) if old else text)


def templates(**changed: Template) -> Templates:
    files = {n: template(f"{n}.yaml") for n in ("listener", "routes", "clusters")}
    return Templates(**(files | changed))


def snapshot(*endpoints: str, **settings: object) -> Snapshot:
    return build_snapshot(templates(), msgspec.structs.replace(SETTINGS, **settings), endpoints)


def unpack(packed: bytes, kind: type[Message]) -> Message:
    message = kind()
    assert any_pb2.Any.FromString(packed).Unpack(message)
    return message


def engines(of: Snapshot) -> list[tuple[str, int]]:
    list_ = unpack(of.types[ENDPOINTS].by_name["engines"], endpoint_pb2.ClusterLoadAssignment)
    sockets = [e.endpoint.address.socket_address for e in list_.endpoints[0].lb_endpoints]
    return [(s.address, s.port_value) for s in sockets]


def test_every_type_is_there_and_parses() -> None:
    types = snapshot("10.0.0.1:80").types
    assert types.keys() == set(SEND_ORDER)
    assert types[CLUSTER].by_name.keys() == {"engines", "workers"}
    unpack(types[LISTENER].by_name["edge"], listener_pb2.Listener)
    unpack(types[ROUTES].by_name["edge"], route_pb2.RouteConfiguration)
    workers = unpack(types[CLUSTER].by_name["workers"], cluster_pb2.Cluster)
    pipes = [
        e.endpoint.address.pipe.path for e in workers.load_assignment.endpoints[0].lb_endpoints
    ]
    assert pipes == ["/w0", "/w1"]


def test_endpoints_are_sorted_unique_and_ipv6_is_bare() -> None:
    assert engines(snapshot("[fd00::1]:8000", "10.0.0.2:80", "10.0.0.1:80", "10.0.0.2:80")) == [
        ("10.0.0.1", 80), ("10.0.0.2", 80), ("fd00::1", 8000),
    ]  # fmt: skip


def test_the_order_in_which_instances_came_is_no_change() -> None:
    assert snapshot("a:1", "b:2").types == snapshot("b:2", "a:1").types


@pytest.mark.parametrize("bad", ["10.0.0.1", "10.0.0.1:", ":80", "a:0", "a:65536", "a:x", ""])
def test_an_endpoint_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(SnapshotError, match="endpoint"):
        snapshot("10.0.0.1:80", bad)


def test_new_endpoints_change_the_endpoint_list_alone() -> None:
    before = snapshot("10.0.0.1:80")
    after = with_endpoints(before, ["10.0.0.2:80"])
    assert after == snapshot("10.0.0.2:80")
    assert [t for t in SEND_ORDER if after.version(t) != before.version(t)] == [ENDPOINTS]
    assert after.endpoints == {"10.0.0.2:80"}


@pytest.mark.parametrize(
    ("setting", "value", "door"),
    [
        ("decode_idle_timeout_s", 7, ROUTES), ("decode_headers_timeout_s", 7, ROUTES),
        ("decode_whole_timeout_s", 7, ROUTES), ("max_body_bytes", 7, ROUTES),
        ("upstream_max_pending", 7, CLUSTER), ("upstream_connect_timeout_s", 7, CLUSTER),
        ("listener_backlog", 7, LISTENER), ("http_idle_timeout_s", 7, LISTENER),
        ("access_log_buffer_interval_ms", 7, LISTENER), ("access_log_path", "/log", LISTENER),
        ("cors_origins", ("https://a.b",), ROUTES), ("cors_origins", ("*",), ROUTES),
    ],
)  # fmt: skip
def test_each_setting_goes_through_its_own_door(setting: str, value: object, door: str) -> None:
    before, after = snapshot(), snapshot(**{setting: value})
    assert [t for t in SEND_ORDER if after.version(t) != before.version(t)] == [door]


def test_profiling_adds_a_cluster_and_its_routes() -> None:
    before, after = snapshot(), snapshot(profile_routes=True)
    assert after.types[CLUSTER].by_name.keys() == {"engines", "workers", "admin"}
    changed = [t for t in SEND_ORDER if after.version(t) != before.version(t)]
    assert changed == [CLUSTER, ROUTES]


def test_the_file_access_log_is_there_only_with_a_path() -> None:
    def has_file(of: Snapshot) -> bool:
        return b"access_loggers.file" in of.types[LISTENER].by_name["edge"]

    assert not has_file(snapshot())
    assert has_file(snapshot(access_log_path="/log"))


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        ("clusters.yaml", "    name: engines", "    name: others", "engines"),
        ("routes.yaml", "    name: edge", "    name: other", "edge"),
        ("routes.yaml", "cluster: engines", "cluster: nowhere", "nowhere"),
        ("routes.yaml", "domains:", "no_such_field:", "no_such_field"),
        ("listener.yaml", "${listener_backlog}", "${backlog}", "backlog"),
        (
            "listener.yaml",
            "config.listener.v3.Listener",
            "config.cluster.v3.Cluster",
            "listener.yaml",
        ),
    ],
)
def test_an_inconsistent_configuration_is_refused_by_name(
    file: str, old: str, new: str, fault: str
) -> None:
    changed = templates(**{file.removesuffix(".yaml"): template(file, old, new)})
    with pytest.raises(SnapshotError, match=fault):
        build_snapshot(changed, SETTINGS, [])


def test_another_process_makes_the_same_bytes() -> None:
    code = (
        "from tests.xds.test_resources import snapshot;"
        "s = snapshot('10.0.0.1:80', access_log_path='/l');"
        "print(*(s.version(t) for t in s.types))"
    )
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, cwd=FILES.parent, capture_output=True, check=True).stdout
        for _ in range(3)
    ]
    assert len(set(runs)) == 1


def test_the_bootstrap_hash_sees_every_value_and_no_order() -> None:
    document = bootstrap_document(template("bootstrap.yaml"), SETTINGS)
    assert bootstrap_hash(document) == bootstrap_hash(dict(reversed(document.items())))
    other = bootstrap_document(
        template("bootstrap.yaml"), msgspec.structs.replace(SETTINGS, admin_port=1)
    )
    assert bootstrap_hash(document) != bootstrap_hash(other)


def test_the_supervisors_modules_import_neither_protobuf_nor_grpc() -> None:
    code = (
        "import sys, sidecar.xds.bootstrap, sidecar.edge.envoy_process;"
        "bad = [m for m in sys.modules if m.partition('.')[0] in ('grpc', 'zmq', 'envoy')"
        " or m.startswith('google.protobuf')]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], cwd=FILES.parent, check=True)
