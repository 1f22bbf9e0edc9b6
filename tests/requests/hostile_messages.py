"""Messages of which two readers may not see the same end: the shapes of request smuggling."""

from dataclasses import dataclass

MARK = "smuggled"
INNER = b"POST /tokenize?smuggled HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n{}"
"""What must never be seen as a request of its own by an engine."""
BODY = b'{"model": "scripted-model", "prompt": "Hello"}'
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def headed(*lines: bytes, body: bytes = b"", first: bytes = b"POST /tokenize HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: e", b"Content-Type: application/json", *lines]) + (
        b"\r\n\r\n" + body
    )


@dataclass(frozen=True)
class Message:
    sent: bytes
    is_valid: bool = False
    """Envoy may read one request in it and send a clean one on (it is lenient with line ends,
    blanks, folds, versions and what follows a chunk); the others it must refuse"""


TE, CL = b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(BODY)

MESSAGES = {
    # two lengths
    "chunked and a length": Message(headed(TE, b"Content-Length: 4", body=CHUNKS + INNER)),
    "a length and chunked": Message(headed(b"Content-Length: 4", TE, body=CHUNKS + INNER)),
    "chunked and a length of nothing": Message(headed(b"Content-Length: 0", TE, body=CHUNKS)),
    "two lengths": Message(headed(CL, b"Content-Length: 0", body=BODY + INNER)),
    "two equal lengths": Message(headed(CL, CL, body=BODY)),
    "a list of lengths": Message(headed(b"Content-Length: 46, 0", body=BODY + INNER)),
    "a list of equal lengths": Message(headed(b"Content-Length: 46, 46", body=BODY)),
    # a length that is no number to some
    "a plus": Message(headed(b"Content-Length: +46", body=BODY)),
    "a minus": Message(headed(b"Content-Length: -1", body=BODY)),
    "hexadecimal": Message(headed(b"Content-Length: 0x2e", body=BODY)),
    "an underscore": Message(headed(b"Content-Length: 4_6", body=BODY)),
    "a blank within": Message(headed(b"Content-Length: 4 6", body=BODY)),
    "an exponent": Message(headed(b"Content-Length: 4e1", body=BODY)),
    "no length at all": Message(headed(b"Content-Length:", body=BODY + INNER)),
    "beyond 64 bits": Message(headed(b"Content-Length: 18446744073709551662", body=BODY)),
    "another script's digits": Message(headed("Content-Length: ٤٦".encode(), body=BODY)),
    "a letter after": Message(headed(b"Content-Length: 46a", body=BODY)),
    # a coding that some take for chunked
    "xchunked": Message(headed(b"Transfer-Encoding: xchunked", CL, body=BODY)),
    "chunked, identity": Message(headed(b"Transfer-Encoding: chunked, identity", body=CHUNKS)),
    "identity": Message(headed(b"Transfer-Encoding: identity", CL, body=BODY + INNER)),
    "gzip, chunked": Message(headed(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    "chunked twice": Message(headed(TE, TE, body=CHUNKS)),
    "chunked and xchunked": Message(headed(TE, b"Transfer-Encoding: x", body=CHUNKS + INNER)),
    "a comma before": Message(headed(b"Transfer-Encoding: ,chunked", CL, body=BODY)),
    "a semicolon": Message(headed(b"Transfer-Encoding: chunked;a=b", body=CHUNKS)),
    "quoted": Message(headed(b'Transfer-Encoding: "chunked"', CL, body=BODY)),
    "a vertical tab": Message(headed(b"Transfer-Encoding: \x0bchunked", CL, body=BODY)),
    "a NUL in chunked": Message(headed(b"Transfer-Encoding: chunked\0", CL, body=BODY)),
    "no coding at all": Message(headed(b"Transfer-Encoding:", CL, body=BODY + INNER)),
    "capitals": Message(headed(b"Transfer-Encoding: CHUNKED", body=CHUNKS), True),
    "a tab before": Message(headed(b"Transfer-Encoding:\tchunked", body=CHUNKS), True),
    "blanks after": Message(headed(b"Transfer-Encoding: chunked \t ", body=CHUNKS), True),
    "HTTP/1.0 and chunked": Message(
        headed(TE, body=CHUNKS + INNER, first=b"POST /tokenize HTTP/1.0"), is_valid=True
    ),
    # names
    "a blank before the colon": Message(headed(b"Transfer-Encoding : chunked", CL, body=BODY)),
    "a tab before the colon": Message(headed(b"Content-Length\t: 46", body=BODY + INNER)),
    "a blank before the name": Message(
        headed(b" Transfer-Encoding: chunked", CL, body=BODY), is_valid=True
    ),
    "a fold": Message(
        headed(b"X-A: b\r\n Transfer-Encoding: chunked", CL, body=BODY), is_valid=True
    ),
    "a fold in the coding": Message(
        headed(b"Transfer-Encoding:\r\n chunked", body=CHUNKS), is_valid=True
    ),
    "a fold in the length": Message(headed(b"Content-Length: 4\r\n 6", body=BODY + INNER)),
    "a NUL in a name": Message(headed(b"Content\0-Length: 46", body=BODY)),
    "a NUL in a value": Message(headed(b"X-A: a\0b", CL, body=BODY)),
    "an underscore for a dash": Message(headed(b"Content_Length: 0", CL, body=BODY), True),
    "a non-ASCII name": Message(headed(b"Content-L\xc3\xa9ngth: 0", CL, body=BODY)),
    "a line without a colon": Message(headed(b"Transfer-Encoding", CL, body=BODY)),
    "an empty name": Message(headed(b": chunked", CL, body=BODY)),
    # ends of lines
    "bare LF after a field": Message(headed(b"X-A: b\nContent-Length: 0", CL, body=BODY)),
    "bare LF alone": Message(headed(CL, body=BODY).replace(b"\r\n", b"\n"), True),
    "bare CR in a value": Message(headed(b"X-A: b\rContent-Length: 0", CL, body=BODY), True),
    "bare CR alone": Message(headed(CL, body=BODY).replace(b"\r\n", b"\r")),
    "LF CR": Message(headed(b"X-A: b\n\rX-B: c", CL, body=BODY)),
    # chunks
    "a size of no digit": Message(headed(TE, body=b"x\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "a size below nothing": Message(headed(TE, body=b"-1\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "a size with 0x": Message(headed(TE, body=b"0x2e\r\n" + BODY + b"\r\n0\r\n\r\n")),
    "a size beyond 64 bits": Message(
        headed(TE, body=b"1000000000000002e\r\n" + BODY + b"\r\n0\r\n\r\n" + INNER)
    ),
    "a size of a megabyte of zeros": Message(headed(TE, body=b"0" * 1_000_000 + b"2e\r\n" + BODY)),
    "a chunk longer than its size": Message(
        headed(TE, body=b"4\r\n" + BODY + b"\r\n0\r\n\r\n"), True
    ),
    "bare LF after a size": Message(headed(TE, body=b"2e\n" + BODY + b"\r\n0\r\n\r\n" + INNER)),
    "bare LF in an extension": Message(
        headed(TE, body=b"2e;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n" + INNER)
    ),
    "bare CR after a size": Message(headed(TE, body=b"2e\r" + BODY + b"\r\n0\r\n\r\n" + INNER)),
    "a length among the trailers": Message(
        headed(TE, body=CHUNKS[:-2] + b"Content-Length: 70\r\n\r\n"), is_valid=True
    ),
    "a fold among the trailers": Message(
        headed(TE, body=CHUNKS[:-2] + b"X: a\r\n b\r\n\r\n"), True
    ),
    # hosts and lines
    "two hosts": Message(headed(b"Host: evil.example", CL, body=BODY), True),
    "no host": Message(headed(CL, body=BODY).replace(b"Host: e\r\n", b"")),
    "a request line of two": Message(
        headed(CL, body=BODY, first=b"POST /tokenize HTTP/1.1 HTTP/1.1")
    ),
    "two blanks in the line": Message(
        headed(CL, body=BODY, first=b"POST  /tokenize  HTTP/1.1"), is_valid=True
    ),
    "a tab in the line": Message(
        headed(CL, body=BODY, first=b"POST\t/tokenize\tHTTP/1.1"), is_valid=True
    ),
    "HTTP/1.2": Message(headed(CL, body=BODY, first=b"POST /tokenize HTTP/1.2"), True),
    "HTTP/2.0": Message(headed(CL, body=BODY, first=b"POST /tokenize HTTP/2.0"), True),
    # bodies where there should be none
    "GET with a body that is a request": Message(
        headed(b"Content-Length: %d" % len(INNER), body=INNER, first=b"GET /version HTTP/1.1"),
        is_valid=True,
    ),
    "HEAD with a body that is a request": Message(
        headed(b"Content-Length: %d" % len(INNER), body=INNER, first=b"HEAD /version HTTP/1.1"),
    ),
}
