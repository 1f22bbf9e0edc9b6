"""Protobuf by hand, for the replies to every request.

Source: https://protobuf.dev/programming-guides/encoding

The classes made from Envoy's files cost more for a reply than all that decides it; they stay what
the tests compare with.
"""

LENGTH_DELIMITED = 2
_ONE_BYTE = tuple(bytes((n,)) for n in range(128))


def tag(number: int) -> bytes:
    """Of a length-delimited field with a number below 16."""
    return _ONE_BYTE[number << 3 | LENGTH_DELIMITED]


def varint(value: int) -> bytes:
    """Of a number that is not negative."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def head(mark: bytes, size: int) -> bytes:
    """What stands before the `size` bytes of a field."""
    return mark + (_ONE_BYTE[size] if size < 128 else varint(size))


def field(mark: bytes, data: bytes) -> bytes:
    size = len(data)
    return mark + (_ONE_BYTE[size] if size < 128 else varint(size)) + data
