"""Protobuf by hand, for the replies to every request.

Source: https://protobuf.dev/programming-guides/encoding

With the classes made from Envoy's files a large body is copied again for each reply; they stay what
the tests compare with.
"""

LENGTH_DELIMITED = 2
SHORT = 128
"""numbers below it are one byte"""
BYTE = tuple(bytes((n,)) for n in range(SHORT))


def tag(number: int) -> bytes:
    """Of a length-delimited field with a number below 16."""
    return BYTE[number << 3 | LENGTH_DELIMITED]


def varint(value: int) -> bytes:
    """Of a number that is not negative."""
    if value < SHORT:
        return BYTE[value]
    if value < SHORT * SHORT:
        return bytes((value & 127 | 128, value >> 7))
    return bytes((value & 127 | 128,)) + varint(value >> 7)


def head(mark: bytes, size: int) -> bytes:
    """What stands before the `size` bytes of a field."""
    return mark + (BYTE[size] if size < SHORT else varint(size))


def field(mark: bytes, data: bytes) -> bytes:
    size = len(data)
    return mark + (BYTE[size] if size < SHORT else varint(size)) + data


def extent(data: bytes, at: int) -> slice | None:
    """Where the bytes of a field are whose length begins at `at`; None: they are not all there."""
    size = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < SHORT:
            return slice(at, at + size) if at + size <= len(data) else None
        shift += 7
    return None
