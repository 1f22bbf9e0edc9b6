"""Files that come back to us: torn by a crash, of another version, or written by hand."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import msgspec

from sidecar.app import registry_file
from sidecar.app.settings import limits, static_instances
from sidecar.app.transfer_keeper import TransferKeeper
from sidecar.config import Config, load
from sidecar.edge.transfer_journal import CELL_BYTES, TransferJournal
from sidecar.errors import ConfigError
from sidecar.routing.instance import Connector
from sidecar.routing.record import SavedPool, SavedRecord
from tests.exchange.exchange_driver import decode

CELLS = 8
"""of a fuzzed journal"""


@contextmanager
def _file() -> Iterator[Path]:
    """A path for one file, in a folder of its own, which goes when this ends."""
    with TemporaryDirectory(prefix="pd-fuzz-") as folder:
        yield Path(folder) / "file"


def check_journal(data: bytes) -> None:
    """Whatever is in the file: it opens, its entries have their bounds, and it works on."""
    with _file() as path:
        path.write_bytes(data)
        journal = TransferJournal(path, CELLS)
        assert path.stat().st_size >= CELLS * CELL_BYTES
        assert all(0 < len(entry) < CELL_BYTES for entry in journal.leftovers.values())
        before = dict(journal.leftovers)
        cell = journal.put(b"ours")
        assert (cell is None) == (len(before) == CELLS)
        if cell is not None:
            before[cell] = b"ours"
        journal.close()
        again = TransferJournal(path, CELLS)
        assert again.leftovers == before
        TransferKeeper(again, None, lambda _record: None, 0.0, 0.0).recover(now=1e6)
        again.close()


def check_journal_entry(data: bytes) -> None:
    """The same with one entry of the right length."""
    room = data[: CELL_BYTES - 2]
    check_journal(len(room).to_bytes(2, "little") + room)


def check_registry_file(data: bytes) -> None:
    """What was saved, or None: as it is, and with the checksum that would make it ours."""
    with _file() as path:
        for content in (data, crc32(data).to_bytes(4, "big") + data):
            path.write_bytes(content)
            saved = registry_file.load(path, Connector.MORIIO)
            assert saved is None or isinstance(saved, SavedPool)
            if saved is not None:
                registry_file.save(path, saved)
                again = registry_file.load(path, Connector.MORIIO)
                # Its bytes, because a time that is not a number is not itself.
                assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(saved)


def check_configuration(data: bytes) -> None:
    """A Config, or a ConfigError with a line for each fault."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return  # the command says so before it reads on
    with suppress(ConfigError):
        check_configured(text, {})


def check_environment(data: bytes) -> None:
    """The same of variables, `KEY=VALUE` a line."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    pairs = [line.partition("=")[::2] for line in lines]
    with suppress(ConfigError):
        check_configured("", {f"PD_SIDECAR__{key}": value for key, value in pairs})


def _are_lines(faults: list[str]) -> None:
    assert faults
    assert all(isinstance(fault, str) and fault for fault in faults)


def check_configured(text: str, environment: dict[str, str]) -> None:
    """What was read can be used. Raises the ConfigError of what cannot be read."""
    try:
        config = load(text, environment, {})
        assert isinstance(config, Config)
        static_instances(config)
    except ConfigError as error:
        _are_lines(error.faults)
        raise
    limits(config)


def journal_entry_seeds() -> tuple[bytes, ...]:
    slot = ["10.0.1.5:8000", 1]
    transfer = ["tx-1", "10.0.0.1:8000", slot, 12.5]
    return tuple(msgspec.msgpack.encode([transfer, answered]) for answered in (None, 13.0))


def journal_seeds() -> tuple[bytes, ...]:
    with _file() as path:
        journal = TransferJournal(path, CELLS)
        for entry in journal_entry_seeds():
            journal.put(entry)
        journal.close()
        return (path.read_bytes(), path.read_bytes()[:100], b"")


def registry_file_seeds() -> tuple[bytes, ...]:
    instance = decode().member.instance
    record = SavedRecord(instance, 5, 1.7e9, instance.address, is_leaving=True)
    return (msgspec.msgpack.encode(SavedPool(7, (record,), {"10.0.0.9:80": 3})),)
