"""The registry's file in the run directory: what the engines said, kept over a restart.

A CRC (4 bytes, big endian), then the records in MessagePack. Invariant: what is loaded is what was
saved, whole; anything else is left out, for one record that says nonsense would end the control
process at each of its starts.
"""

import logging
from pathlib import Path
from zlib import crc32

import msgspec

from sidecar.routing.instance import Connector
from sidecar.routing.record import SavedPool

log = logging.getLogger(__name__)

_CRC_BYTES = 4


def load(path: Path, connector: Connector) -> SavedPool | None:
    """None: there is none that can be used. Of what an earlier run heard with another connector
    than the pool's only the ordinals come back."""
    try:
        content = path.read_bytes()
        data = content[_CRC_BYTES:]
        if crc32(data) != int.from_bytes(content[:_CRC_BYTES], "big"):
            raise ValueError("its checksum is wrong")
        saved = msgspec.msgpack.decode(data, type=SavedPool)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        log.warning("%s cannot be read and is left out: %s", path, error)
        return None
    return _of_connector(saved, connector)


def _of_connector(saved: SavedPool, connector: Connector) -> SavedPool:
    ordinals, ours = dict(saved.ordinals), []
    for record in saved.records:
        if record.instance.connector is connector:
            ours.append(record)
        else:
            ordinals.setdefault(record.instance.address, record.ordinal)
    return msgspec.structs.replace(saved, records=tuple(ours), ordinals=ordinals)


def save(path: Path, saved: SavedPool) -> None:
    """Atomic: a reader finds the old or the new whole. Raises OSError."""
    data = msgspec.msgpack.encode(saved)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(crc32(data).to_bytes(_CRC_BYTES, "big") + data)
    temporary.replace(path)
