"""Which path goes where, each with the test that shows it."""

from tests.requests.proof import Proof

_HERE = "tests/requests/test_paths.py::"
_ROUTES = "tests/edge/test_edge_routes.py::"
_CORS = "tests/edge/test_edge_cors.py::"
_DOORS = "tests/edge/test_edge_doors.py::"
_FEATURES = "tests/requests/test_more.py::"
_AUDIO = "tests/requests/test_audio.py::"

PATHS = [
    Proof(
        "`GET /v1/models`",
        "answered by the sidecar: the union, each entry as an engine says it",
        _HERE + "test_models_are_the_union_as_the_engines_say_it",
    ),
    Proof(
        "a model that some instances serve",
        "on those alone, on every path",
        _HERE + "test_a_request_goes_to_instances_of_its_model",
    ),
    Proof(
        "no `model`, in a pool of one",
        "as that model",
        _FEATURES + "test_a_request_without_a_model_means_the_only_one",
    ),
    Proof(
        "no `model`, in a pool of several",
        "400 `model_missing` with their names",
        _HERE + "test_a_request_without_a_model_is_refused_with_their_names",
    ),
    Proof(
        "a single-instance path whose body is no JSON, in a pool of several models",
        "400 `body_invalid`",
        _HERE + "test_what_is_no_json_cannot_be_placed_by_its_model",
    ),
    Proof(
        "`/v1/audio/transcriptions`, `/v1/audio/translations`, whole and streamed",
        "by one instance of the model that the form names, as OpenAI's client sends it",
        _AUDIO + "test_openais_client_gets_the_transcript_of_its_model",
    ),
    Proof(
        "a form of 5 MB: with its length, chunked, HTTP/2",
        "to the byte, with its type",
        _AUDIO + "test_a_form_of_5_mb_arrives_to_the_byte",
    ),
    Proof(
        "several `model` in a form",
        "the last counts, as for the engines; an empty one is none",
        "tests/wire/test_form.py::test_the_last_model_counts",
    ),
    Proof(
        "a form without `model`, in a pool of several",
        "400 `model_missing` with their names",
        _AUDIO + "test_a_form_must_name_its_model_where_there_are_several",
    ),
    Proof(
        "`kv_transfer_params` and its like in a form or its `vllm_xargs`, however they are spelled "
        "or hidden",
        "400 `body_invalid`; other `vllm_xargs` reach the engine",
        _AUDIO + "test_what_only_a_router_may_say_reaches_no_engine",
    ),
    Proof(
        "a body of these paths that is not one form: JSON, no boundary or two, another charset",
        "400 `body_invalid`",
        _AUDIO + "test_a_type_that_is_not_that_of_one_form_is_refused",
    ),
    Proof(
        "a form with a `Content-Encoding`",
        "415 `body_encoding`",
        _AUDIO + "test_a_compressed_form_is_refused",
    ),
    Proof(
        "a form over the limit (`tuning.http.max_body_bytes`)",
        "413 `body_too_large`",
        _AUDIO + "test_a_form_over_the_limit_is_refused",
    ),
    Proof(
        "a model that nobody serves",
        "an engine's own 404",
        _HERE + "test_an_unknown_model_is_an_engines_own_404",
    ),
    Proof(
        "a model whose instances are all away",
        "503 `no_prefill_instance` or `no_decode_instance`",
        _HERE + "test_a_model_whose_instances_are_away_is_not_served_by_another",
    ),
    Proof(
        "an adapter that is loaded while engines run",
        "whole by an engine that has it, through prefill and decode when both have",
        _HERE + "test_an_adapter_that_was_just_loaded_is_served",
    ),
    Proof(
        "what one transfer cannot carry, with `placement.aggregated_role: decode`",
        "whole by one decode instance where its version does that right, else by a prefill one",
        _HERE + "test_what_one_transfer_cannot_carry_goes_where_the_operator_says",
    ),
    Proof(
        "`/v1/responses/{id}`, `/v1/responses/{id}/cancel`",
        "400 `stored_response`",
        _HERE + "test_a_kept_response_is_refused_with_a_reason",
    ),
    Proof(
        "`store`, `background`, `previous_response_id` of `/v1/responses`",
        "400 `stored_response` with the field; false and null are served",
        _HERE + "test_a_response_that_is_to_be_kept_is_refused_by_its_field",
    ),
    Proof(
        "built-in tools of `/v1/responses`",
        "whole by one prefill instance: an engine runs them in rounds",
        "tests/wire/test_transferable.py::test_what_prefill_would_not_see_is_refused_by_one_engine",
    ),
    Proof(
        "`/start_profile`, `/stop_profile` on the admin port (on the edge with "
        "`edge.profile_routes`)",
        "by every instance; the reply of each is shown, 200 if all are",
        _HERE + "test_a_profile_is_started_and_stopped_on_every_engine",
    ),
    Proof(
        "the same on the edge without `edge.profile_routes`",
        "404; with it they are POST, and no worker is asked",
        _DOORS + "test_profiling_leads_to_the_control_process_only_when_it_is_on",
    ),
    Proof(
        "the same on the edge while the control process is away",
        "503 with `retry-after`, at once",
        _DOORS + "test_profiling_while_the_control_process_is_away_is_a_clear_503",
    ),
]
