"""What of HTTP is carried, each with the test that shows it."""

from tests.requests.proof import Proof

_HTTP = "tests/requests/test_transport_http.py::"
_STREAMS = "tests/requests/test_transport_streams.py::"
_DOORS = "tests/edge/test_edge_doors.py::"
_ALL = "on every path"

TRANSPORT = [
    Proof(
        "a connection that is kept for more requests",
        f"{_ALL}; a 400 of the router, or of a prefill leg, closes it and says so",
        _HTTP + "test_a_connection_is_kept_for_the_next_request",
    ),
    Proof(
        "`Connection: close`",
        f"{_ALL}: the answer says it too, then the connection is closed",
        _HTTP + "test_a_connection_that_will_be_closed_says_so",
    ),
    Proof(
        "pipelined requests",
        "answered in order, whatever serves each",
        _HTTP + "test_pipelined_requests_are_answered_in_order",
    ),
    Proof(
        "HTTP/2 with prior knowledge",
        "many requests at once on one connection",
        _HTTP + "test_http_2_with_prior_knowledge_carries_many_streams",
    ),
    Proof("chunked uploads", _ALL, _HTTP + "test_a_chunked_upload_arrives_whole"),
    Proof(
        "`Expect: 100-continue`",
        f"{_ALL}: answered before the body, by the router",
        _HTTP + "test_expect_100_continue_is_answered_before_the_body",
    ),
    Proof(
        "trailers of a request",
        "accepted and left out, in HTTP/1.1 and HTTP/2",
        _HTTP + "test_trailers_of_a_request_are_accepted",
    ),
    Proof(
        "trailers of an answer",
        "left out; the answer is whole",
        _HTTP + "test_an_answer_with_trailers_is_whole_without_them",
    ),
    Proof(
        "an engine's own status (418, 429, 529, …), its headers (`retry-after`, `x-ratelimit-*`, "
        "`content-type` with a charset, two `set-cookie`) and its body",
        f"{_ALL}: unchanged",
        _HTTP + "test_an_engines_status_headers_and_body_pass_unchanged",
    ),
    Proof(
        "an answer without a body, or without a type",
        f"{_ALL}: unchanged",
        _HTTP + "test_an_answer_without_a_body_or_a_type_passes",
    ),
    Proof(
        "an answer of 10 MB, with its length or in chunks",
        f"{_ALL}: byte for byte",
        _HTTP + "test_a_large_answer_is_byte_exact",
    ),
    Proof(
        "an answer that the engine ends by closing",
        f"{_ALL}: whole, and the client's connection stays",
        _HTTP + "test_an_answer_that_the_engine_ends_by_closing_is_whole",
    ),
    Proof(
        "HEAD on `/health`, `/ping`, `/v1/models`",
        "as GET, without the body",
        _HTTP + "test_head_is_answered_as_get_without_its_body",
    ),
    Proof(
        "HTTP/1.0, with a Host or without",
        f"{_ALL}; closed after the answer",
        _HTTP + "test_http_10_is_served_and_closed",
    ),
    Proof(
        "HTTP/1.0 with `Connection: keep-alive`",
        "the connection is kept for the next request",
        _DOORS + "test_http_10_keeps_its_connection_when_it_asks",
    ),
    Proof(
        "a streamed answer to HTTP/1.0",
        f"{_ALL}: without chunks, ended by the close",
        _HTTP + "test_http_10_gets_a_streamed_answer_ended_by_the_close",
    ),
    Proof(
        "`Upgrade: h2c`",
        "not taken up: served in HTTP/1.1",
        _HTTP + "test_an_upgrade_to_h2c_is_not_taken_up",
    ),
    Proof(
        "a streamed answer, event by event",
        f"{_ALL}, READ and WRITE: each reaches the client before the engine sends the next",
        _STREAMS + "test_every_event_reaches_the_client_before_the_next_is_sent",
    ),
    Proof(
        "an event in several TCP writes",
        f"{_ALL}, READ and WRITE: its pieces are forwarded as they come",
        _STREAMS + "test_an_event_in_pieces_is_forwarded_in_pieces",
    ),
    Proof(
        "streams side by side on one HTTP/2 connection",
        "each at its own pace",
        _STREAMS + "test_http_2_streams_in_lock_step_too",
    ),
    Proof(
        "a stream that the engine breaks off",
        f"{_ALL}, READ and WRITE: cut, never ended cleanly",
        _STREAMS + "test_a_stream_that_the_engine_breaks_off_is_never_ended_cleanly",
    ),
    Proof(
        "a client that leaves during its stream",
        f"{_ALL}, READ and WRITE: the engine's connection is closed, which stops it",
        _STREAMS + "test_a_client_that_leaves_is_felt_by_the_engine",
    ),
]
