"""The registry's file: what was saved comes back whole, or not at all."""

import random
from pathlib import Path

import msgspec

from sidecar.app import registry_file
from sidecar.routing.instance import Instance, Role, TransferMode
from sidecar.routing.record import SavedPool
from sidecar.routing.registry import Registry


def saved() -> SavedPool:
    registry = Registry(12.0)
    for address in ("10.0.0.1:8000", "decode.example:8000"):
        one = Instance(address=address, role=Role.DECODE, transfer_mode=TransferMode.READ)
        registry.hear(one, 1.0)
    return registry.to_file(2.0, 1000.0)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    """And nothing where there is none."""
    path = tmp_path / "registry"
    assert registry_file.load(path) is None
    registry_file.save(path, saved())
    assert registry_file.load(path) == saved()


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
        assert registry_file.load(path) is None
