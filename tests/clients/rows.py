"""What docs/requests.md says of clients."""

from tests.requests.proof import Proof

_HERE = "tests/clients/"
_PAIR = "through prefill and decode"
_ALONE = "whole by one prefill instance"
_ONE = "by one instance"
_SIDECAR = "answered by the sidecar"
_ENGINE = "refused by an engine, in its words"
_FREED = "through prefill and decode; nothing stays in flight, no block taken"


def _openai(feature: str, served: str, test: str) -> Proof:
    return Proof(f"the openai client: {feature}", served, f"{_HERE}test_openai.py::{test}")


def _anthropic(feature: str, served: str, test: str) -> Proof:
    return Proof(f"the anthropic client: {feature}", served, f"{_HERE}test_anthropic.py::{test}")


def _langchain(feature: str, test: str) -> Proof:
    return Proof(f"LangChain's ChatOpenAI: {feature}", _PAIR, f"{_HERE}test_langchain.py::{test}")


def _curl(feature: str, served: str, test: str) -> Proof:
    return Proof(f"curl: {feature}", served, f"{_HERE}test_curl.py::{test}")


def _http(feature: str, test: str) -> Proof:
    return Proof(feature, _PAIR, f"{_HERE}test_http_clients.py::{test}")


PROOFS = (
    _openai("a chat, streamed or not", _PAIR, "test_a_streamed_chat"),
    _openai("a completion, streamed or not", _PAIR, "test_a_streamed_completion"),
    _openai("several prompts and choices", _ALONE, "test_several_prompts_and_choices"),
    _openai("a response, streamed or not", _PAIR, "test_a_streamed_response"),
    _openai("tools", _PAIR, "test_a_tool_is_called"),
    _openai("a structured output, parsed", _PAIR, "test_a_structured_output"),
    _openai("log probabilities", _PAIR, "test_logprobs"),
    _openai("embeddings", _ONE, "test_embeddings"),
    _openai("the list of models", _SIDECAR, "test_the_models"),
    _openai("raw headers: the receipt and the request id", _PAIR, "test_raw_headers"),
    _openai("`NotFoundError` for an unknown model", _ENGINE, "test_an_unknown_model"),
    _openai("`BadRequestError` for a bad body", _ENGINE, "test_a_bad_body"),
    _openai("its own time limit", _FREED, "test_a_time_limit_of_the_client"),
    _openai("a stream that is closed in the middle", _FREED, "test_a_stream_that_is_left"),
    Proof(
        "the openai client, asynchronous: many chats and streams at once",
        _PAIR,
        f"{_HERE}test_openai_async.py::test_many_streams_at_once",
    ),
    Proof(
        "the openai client, asynchronous: a stream that is cancelled",
        _FREED,
        f"{_HERE}test_openai_async.py::test_a_cancelled_stream",
    ),
    Proof(
        "the openai client: `APIStatusError` while the router drains",
        "refused with 503 `draining`",
        f"{_HERE}test_openai_draining.py::test_a_draining_router",
    ),
    _anthropic("a message", _PAIR, "test_a_message"),
    _anthropic("a message, streamed", _PAIR, "test_a_streamed_message"),
    _anthropic("tools", _PAIR, "test_a_tool_is_called"),
    _anthropic("tokens counted", _ONE, "test_tokens_are_counted"),
    _anthropic("`NotFoundError`, `BadRequestError`", _ENGINE, "test_its_errors"),
    _anthropic("a stream that is closed in the middle", _FREED, "test_a_stream_that_is_left"),
    _langchain("`invoke`", "test_invoke"),
    _langchain("`stream`", "test_stream"),
    _langchain("`astream`", "test_astream"),
    _langchain("`batch`", "test_batch"),
    _langchain("`bind_tools`", "test_a_tool"),
    _langchain("`with_structured_output`", "test_a_structured_output"),
    _curl("a stream, over HTTP/1.0, 1.1 and 2", _PAIR, "test_a_stream"),
    _curl("`-N`: each token as it comes", _PAIR, "test_each_token_as_it_comes"),
    _curl("a file with `Expect: 100-continue`", _PAIR, "test_a_large_file_that_waits_for_its_100"),
    _curl("`-I`", _SIDECAR, "test_a_head_request"),
    _http("aiohttp: one connection for many requests", "test_aiohttp_keeps_its_connection"),
    _http("aiohttp: a stream", "test_aiohttp_streams"),
    _http("httpx over HTTP/2: many requests on one connection", "test_httpx_with_http2"),
    _http("httpx over HTTP/2: streams on one connection", "test_httpx_streams_with_http2"),
    Proof(
        "lm_eval, `local-completions`: generation",
        "through prefill and decode; with a batch size above 1 whole by one prefill instance",
        f"{_HERE}test_lm_eval.py::test_local_completions",
    ),
    Proof(
        "lm_eval, `local-completions`: multiple choice by log probabilities",
        _ALONE,
        f"{_HERE}test_lm_eval.py::test_local_completions",
    ),
    Proof(
        "lm_eval, `local-chat-completions`: generation",
        _PAIR,
        f"{_HERE}test_lm_eval.py::test_local_chat_completions",
    ),
)
