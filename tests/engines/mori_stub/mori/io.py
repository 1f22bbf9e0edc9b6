"""Stands in for AMD's `mori.io`: the names that vLLM's MoRI-IO connector uses, without RDMA.

Memory of one process is read and written by another through process_vm_readv and
process_vm_writev, one-sided as RDMA is: the peer takes no part. All else (registration, handshake,
notices, scheduling) is vLLM's own code. It needs processes of one user on one machine, and
`kernel.yama.ptrace_scope` 0 or root. What it cannot show: the ordering, limits and faults of a
network card.

MORI_STUB_CONTROL names a JSON file that is read at each transfer, so that a test can break them
while engines run: {"drop": true} reports success and moves nothing, {"fail": "read"} or "write"
lets them fail.
"""

import ctypes
import enum
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

_libc = ctypes.CDLL(None, use_errno=True)


class _Span(ctypes.Structure):
    """`struct iovec`."""

    _fields_: ClassVar = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_MOVE = {"read": _libc.process_vm_readv, "write": _libc.process_vm_writev}
for _call in _MOVE.values():
    _spans = (ctypes.POINTER(_Span), ctypes.c_ulong)
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = [ctypes.c_int, *_spans, *_spans, ctypes.c_ulong]


class BackendType(enum.Enum):
    RDMA = 1
    XGMI = 2


class PollCqMode(enum.Enum):
    POLLING = 0
    EVENT = 1


class IOEngineConfig:
    def __init__(self, host: str = "", port: int = 0) -> None:
        self.host, self.port = host, port


class RdmaBackendConfig:
    """Whatever its options are, there is no card to set them on."""

    def __init__(self, *_options: Any, **_more: Any) -> None: ...


class XgmiBackendConfig(RdmaBackendConfig): ...


class _Described:
    """A value that travels to the peer as bytes."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *values: Any) -> None:
        self.__dict__.update(zip(self.fields, values, strict=True))

    def pack(self) -> bytes:
        return json.dumps([getattr(self, name) for name in self.fields]).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Any:
        return cls(*json.loads(bytes(packed)))


class EngineDesc(_Described):
    fields = ("key", "host", "port", "pid")


class MemoryDesc(_Described):
    fields = ("engine_key", "id", "pid", "address", "size")
    address: int

    @property
    def data(self) -> int:
        """The peer's base address, from which vLLM counts."""
        return self.address


class TransferStatus:
    """Of a transfer that is over when it was asked for."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def Code(self) -> int:
        return 10 if self._fault else 0

    def Message(self) -> str:
        return self._fault

    def Succeeded(self) -> bool:
        return not self._fault

    def Failed(self) -> bool:
        return bool(self._fault)


def _control() -> dict[str, Any]:
    path = os.environ.get("MORI_STUB_CONTROL")
    if path is None or not Path(path).exists():
        return {}
    found: dict[str, Any] = json.loads(Path(path).read_text())
    time.sleep(float(found.get("delay_s", 0)))
    return found


class IOEngineSession:
    """Between one memory of ours and one of a peer's."""

    def __init__(self, local: Any, remote: Any) -> None:
        self._local, self._remote = local, remote

    def batch_read(
        self, local: list[int], remote: list[int], sizes: list[int], _uid: int
    ) -> TransferStatus:
        return self._move("read", local, remote, sizes)

    def batch_write(
        self, local: list[int], remote: list[int], sizes: list[int], _uid: int
    ) -> TransferStatus:
        return self._move("write", local, remote, sizes)

    def _move(self, way: str, local: list[int], remote: list[int], sizes: list[int]) -> Any:
        """Offsets into both memories, and bytes."""
        control = _control()
        if control.get("fail") == way:
            return TransferStatus("told to fail")
        if control.get("drop"):
            return TransferStatus("")
        try:
            for ours, theirs, size in zip(local, remote, sizes, strict=True):
                self._copy(way, ours, theirs, size)
        except OSError as error:
            return TransferStatus(str(error))
        return TransferStatus("")

    def _copy(self, way: str, ours: int, theirs: int, size: int) -> None:
        for memory, at in ((self._local, ours), (self._remote, theirs)):
            if at < 0 or at + size > memory.size:
                raise OSError(f"{way}: {at}+{size} is outside of {memory.size} registered bytes")
        done = 0
        while done < size:
            here = _Span(self._local.address + ours + done, size - done)
            there = _Span(self._remote.address + theirs + done, size - done)
            pid = self._remote.pid
            moved = _MOVE[way](pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if moved <= 0:
                raise OSError(ctypes.get_errno(), f"{way} of process {pid}")
            done += moved


class IOEngine:
    def __init__(self, key: str, config: IOEngineConfig) -> None:
        self._key, self._config = key, config
        self._uids, self._memories = itertools.count(1), itertools.count(1)

    def create_backend(self, *_arguments: Any) -> None: ...

    def get_engine_desc(self) -> EngineDesc:
        return EngineDesc(self._key, self._config.host, self._config.port, os.getpid())

    def register_remote_engine(self, _peer: EngineDesc) -> None: ...

    def register_torch_tensor(self, tensor: torch.Tensor) -> MemoryDesc:
        if not tensor.is_contiguous():
            raise RuntimeError("the tensor must be contiguous")
        size = tensor.nelement() * tensor.element_size()
        return MemoryDesc(self._key, next(self._memories), os.getpid(), tensor.data_ptr(), size)

    def allocate_transfer_uid(self) -> int:
        return next(self._uids)

    def create_session(self, local: MemoryDesc, remote: MemoryDesc) -> IOEngineSession:
        return IOEngineSession(local, remote)


class _NoEvent:
    """In WRITE vLLM waits for a CUDA event; on a CPU the forward pass is over when it returns."""

    def __init__(self, *_arguments: Any, **_more: Any) -> None: ...

    def record(self, *_arguments: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


if not torch.cuda.is_available():
    torch.cuda.Event = _NoEvent  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_arguments: None  # type: ignore[assignment,return-value]
