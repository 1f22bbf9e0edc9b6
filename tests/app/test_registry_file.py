"""The registry's file: what was saved comes back whole, or not at all."""

import random
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from sidecar.app import registry_file
from sidecar.routing.instance import Connector, Instance, Role, TransferMode
from sidecar.routing.record import SavedPool
from sidecar.routing.registry import Registry

MORIIO = Connector.MORIIO


def saved() -> SavedPool:
    registry = Registry(12.0)
    for address in ("10.0.0.1:8000", "decode.example:8000"):
        one = Instance(address=address, role=Role.DECODE, transfer_mode=TransferMode.READ)
        registry.hear(one, 1.0)
    return registry.to_file(2.0, 1000.0)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    """And nothing where there is none."""
    path = tmp_path / "registry"
    assert registry_file.load(path, MORIIO) is None
    registry_file.save(path, saved())
    assert registry_file.load(path, MORIIO) == saved()


@pytest.mark.parametrize("written_by", Connector)
@pytest.mark.parametrize("read_by", Connector)
def test_a_pool_of_another_connector_gets_no_record_back(
    tmp_path: Path, written_by: Connector, read_by: Connector
) -> None:
    """Nothing of them may be placed on, but an address that comes again has its name again."""
    path = tmp_path / "registry"
    registry = Registry(12.0)
    one = Instance(
        address="10.0.0.1:8000",
        role=Role.DECODE,
        transfer_mode=TransferMode.READ,
        connector=written_by,
    )
    registry.hear(one, 1.0)
    registry_file.save(path, registry.to_file(2.0, 1000.0))
    loaded = registry_file.load(path, read_by)
    assert loaded is not None
    again = Registry(12.0)
    changes = again.from_file(loaded, 3.0, 1001.0)
    assert [change.instance for change in changes] == ([one] if written_by is read_by else [])
    assert len(again) == (1 if written_by is read_by else 0)
    again.add_static(msgspec.structs.replace(one, connector=read_by), 3.0)
    assert [member.ordinal for member in again.members(None)] == [0]


def test_a_file_of_before_connectors_were_told_apart_is_moriios(tmp_path: Path) -> None:
    """The field has a default, so that an update forgets no instance."""
    path = tmp_path / "registry"
    tree = msgspec.to_builtins(saved())
    for record in tree["records"]:
        del record["instance"]["connector"]
    data = msgspec.msgpack.encode(tree)
    path.write_bytes(crc32(data).to_bytes(4, "big") + data)
    assert registry_file.load(path, MORIIO) == saved()


def test_a_broken_file_is_no_file(tmp_path: Path) -> None:
    """Whatever byte is wrong, cut off or too many; also a file without a checksum."""
    path = tmp_path / "registry"
    registry_file.save(path, saved())
    whole = path.read_bytes()
    dice = random.Random(1)
    broken = [b"", b"\0", whole[:-1], whole + b"x", msgspec.msgpack.encode(saved())]
    for _ in range(300):
        at = dice.randrange(len(whole))
        broken.append(whole[:at] + bytes([whole[at] ^ dice.randrange(1, 256)]) + whole[at + 1 :])
    for content in broken:
        path.write_bytes(content)
        assert registry_file.load(path, MORIIO) is None
