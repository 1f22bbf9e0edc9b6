"""What hostile input becomes, each with the test that shows it."""

from tests.requests.proof import Proof

_BODIES = "tests/requests/test_hostile_bodies.py::"
_HEADERS = "tests/requests/test_hostile_headers.py::"
_MESSAGES = "tests/requests/test_hostile_messages.py::"
_H2 = "tests/requests/test_hostile_h2.py::"
_UPLOADS = "tests/requests/test_hostile_uploads.py::"
_MEMORY = "tests/edge/test_edge_memory.py::"
_INVALID = "400 `body_invalid`, no engine is asked"

HOSTILE = [
    Proof(
        "millions of keys, of strings, of list items",
        "400 `body_invalid` before anything is made of them; lists are not made",
        "tests/wire/test_openai.py::test_what_would_take_seconds_to_read_is_refused",
    ),
    Proof(
        "media that is not in the body (`http:`, `file:`, `uuid`)",
        "whole by one instance: two might fetch two things",
        "tests/wire/test_transferable.py::test_what_engines_would_fetch_is_fetched_by_one",
    ),
    Proof(
        "HTTP/2 without a window, so that no answer can go out",
        "reset a minute after the answer is done",
        "tests/edge/test_edge_flush.py::test_an_http_2_client_without_a_window_is_let_go",
    ),
    Proof(
        "a web page that calls the admin port",
        "403",
        "tests/edge/test_admin_server.py::test_a_web_page_can_neither_drain_nor_read",
    ),
    Proof(
        "bodies that are no JSON object in UTF-8: arrays, scalars, two values, garbage after, NUL, "
        "a byte order mark, UTF-16, invalid UTF-8 at any depth, NaN, nesting of 10,000 levels",
        _INVALID,
        _BODIES + "test_what_is_no_json_object_is_refused",
    ),
    Proof("no body", "400 `body_missing` or `body_invalid`", _BODIES + "test_no_body_is_refused"),
    Proof(
        "numbers of more than 4,300 digits at the top level",
        _INVALID,
        _BODIES + "test_a_number_that_no_engine_can_read_is_refused",
    ),
    Proof(
        "absurd numbers elsewhere",
        "passed as written; prefill's own refusal is the answer, decode is not asked",
        _BODIES + "test_an_absurd_number_is_for_prefill_to_judge_first",
    ),
    Proof(
        "absurd numbers in a field that the prefill leg has differently",
        "whole to one instance, whose own refusal is the answer",
        _BODIES + "test_what_prefill_would_not_see_is_for_one_engine_to_judge",
    ),
    Proof(
        "a key twice",
        "the last counts, on both legs, as in vLLM",
        _BODIES + "test_of_a_repeated_key_the_last_counts_on_both_legs",
    ),
    Proof(
        "`kv_transfer_params`, `ec_transfer_params`, `request_id`, escaped or twice",
        "taken out",
        _BODIES + "test_what_only_a_router_may_say_is_taken_out",
    ),
    Proof(
        "the same on the other paths that read them",
        "taken out",
        _BODIES + "test_they_are_taken_out_on_every_path_that_reads_them",
    ),
    Proof(
        "the same within `vllm_xargs`",
        _INVALID,
        _BODIES + "test_extra_arguments_cannot_bring_them_back",
    ),
    Proof(
        "other `vllm_xargs`",
        "passed to both engines",
        _BODIES + "test_other_extra_arguments_reach_both_engines",
    ),
    Proof(
        "`Content-Encoding`: gzip, br, deflate, zstd, unknown, several",
        "415 `body_encoding`, before the body is read",
        _BODIES + "test_a_compressed_body_is_refused",
    ),
    Proof("`Content-Encoding: identity`", "served", _BODIES + "test_the_identity_encoding_is_none"),
    Proof(
        "a wrong `Content-Type`",
        "passed to both engines; prefill's refusal is the answer",
        _BODIES + "test_both_engines_get_the_type_that_the_client_sent",
    ),
    Proof(
        "no `Content-Type`",
        "prefill is not told that it is JSON",
        _BODIES + "test_a_body_without_a_type_is_without_one_on_both_legs",
    ),
    Proof(
        "a body of the limit (`tuning.http.max_body_bytes`), and one byte more",
        "served, and 413 `body_too_large`; with a length, chunked, HTTP/2",
        _BODIES + "test_the_limit_of_a_body_is_exact",
    ),
    Proof(
        "a body without an end",
        "413 on every path while it is being sent",
        _BODIES + "test_a_body_that_never_ends_is_cut_off_at_the_limit",
    ),
    Proof(
        "a declared length over the limit",
        "413 before a byte of it",
        _BODIES + "test_a_declared_length_over_the_limit_is_refused_before_the_body",
    ),
    Proof(
        "uploads that stop half-way",
        "408 `upload_timeout`; no engine is asked",
        _UPLOADS + "test_a_half_sent_upload_is_refused_in_time",
    ),
    Proof(
        "5,000 half-open uploads at once",
        "bounded memory; others are served meanwhile",
        _UPLOADS + "test_thousands_of_half_open_uploads_cost_little_and_starve_nobody",
    ),
    Proof(
        "more bytes of prompts that wait for prefill than `tuning.http.max_body_bytes_in_flight`",
        "429 `too_many_body_bytes` with `retry-after`, before a byte of the body",
        _UPLOADS + "test_prompts_that_wait_for_prefill_take_a_bounded_room",
    ),
    Proof(
        "uploads that declare much, or nothing, and send nothing",
        "they take no room from others",
        _UPLOADS + "test_who_declares_much_and_sends_nothing_keeps_nobody_out",
    ),
    Proof(
        "more bytes of half-sent uploads than Envoy's memory (`envoy.max_heap_bytes`), HTTP/1.1",
        "they are ended, 503 `overloaded`; answers that are being read go on",
        _MEMORY + "test_a_crowd_of_http_1_uploads_is_ended_and_others_are_served",
    ),
    Proof(
        "the same in HTTP/2",
        "the largest are reset; small ones go on",
        _MEMORY + "test_of_http_2_uploads_the_large_are_reset_and_a_small_one_goes_on",
    ),
    Proof(
        "over 100 headers, or over 60 KiB of them",
        "431 `headers_too_large`; in HTTP/2 a reset",
        _HEADERS + "test_a_flood_of_headers_is_431",
    ),
    Proof(
        "headers that only the router or Envoy may set (`x-pd-*`, `x-envoy-*`, "
        "`x-gateway-destination-*`, `x-data-parallel-rank`, `x-prefiller-host-port`)",
        "taken out, on every path",
        _HEADERS + "test_internal_headers_of_a_client_reach_nobody",
    ),
    Proof(
        "an `x-request-id` with addresses in it",
        "engines get an id of the router's; the client its own back",
        _HEADERS + "test_engines_get_an_id_of_ours_and_the_client_its_own",
    ),
    Proof(
        "another `Host`, `:authority`, or request line with a host",
        "engines are called by their own addresses",
        _HEADERS + "test_the_host_that_a_client_names_is_not_the_engines",
    ),
    Proof(
        "hop-by-hop headers, and those that `Connection` names",
        "taken out; what the router sets stays",
        _HEADERS + "test_hop_by_hop_headers_end_at_the_edge",
    ),
    Proof(
        "odd request lines",
        "400, 404 or 431",
        _HEADERS + "test_odd_request_lines_lead_to_no_engine",
    ),
    Proof(
        "request smuggling in HTTP/1: two lengths, a length and chunks, lengths and codings that "
        "are none, folds, bare line ends, NUL, broken chunks (over 60 shapes)",
        "4xx, 501 or a closed connection; or, where Envoy is lenient, one clean request",
        _MESSAGES + "test_nothing_is_smuggled",
    ),
    Proof(
        "request smuggling in HTTP/2: connection-specific fields, line ends, pseudo-headers, "
        "lengths",
        "4xx, a reset, or the end of the connection",
        _H2 + "test_an_http_2_request_that_http_1_would_read_otherwise_ends_here",
    ),
]
