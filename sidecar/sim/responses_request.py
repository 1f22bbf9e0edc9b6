"""POST /v1/responses: its body checked, and turned into the chat that it stands for."""

from collections.abc import Mapping
from typing import Any

from sidecar.sim.api_error import ApiError, BrokenRule, InvalidBody
from sidecar.sim.fields import BOOL, INT, LIST, OBJECT, SAMPLING, TEXT, Kind, check_types, require
from sidecar.sim.models import Models

_KINDS: Mapping[str, Kind] = {
    **{key: kind for key, kind in SAMPLING.items() if key not in ("n", "min_tokens", "echo")},
    "background": BOOL,
    "store": BOOL,
    "include": LIST,
    "instructions": TEXT,
    "max_output_tokens": INT,
    "max_tool_calls": INT,
    "metadata": OBJECT,
    "parallel_tool_calls": BOOL,
    "previous_response_id": TEXT,
    "reasoning": OBJECT,
    "text": OBJECT,
    "tools": LIST,
    "chat_template_kwargs": OBJECT,
}
_PASSED = (
    "model",
    "stream",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "include",
    "top_logprobs",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "cache_salt",
    "structured_outputs",
    "kv_transfer_params",
    "ec_transfer_params",
)
"""What means in a chat what it means here. No min_tokens, no n: this API has neither."""
_NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background "
    "mode. To enable these features, set the environment variable "
    "`VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


def chat_of_responses(body: Mapping[str, Any], models: Models) -> dict[str, Any]:
    """The chat body; raises ApiError 400 or 404. The store is off, as vLLM's is by default."""
    require(body, "input")
    check_types(body, _KINDS)
    _check_rules(body)
    models.find(body.get("model"))
    if body.get("background"):
        raise ApiError(400, _NO_STORE, "background", "invalid_request_error")
    if (previous := body.get("previous_response_id")) is not None:
        message = f"Response with id '{previous}' not found."
        raise ApiError(404, message, "response_id", "invalid_request_error")
    chat = {key: body[key] for key in _PASSED if key in body}
    chat["messages"] = _messages(body)
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = effort
    if tools := body.get("tools"):
        chat["tools"], chat["tool_choice"] = _tools(tools, body.get("tool_choice", "auto"))
        if chat["tools"] is None:
            del chat["tools"], chat["tool_choice"]
            chat["documents"] = tools  # tools that no function stands for shape the prompt alone
    if form := (body.get("text") or {}).get("format"):
        chat["response_format"] = _format(form)
    return chat


def _check_rules(body: Mapping[str, Any]) -> None:
    if body.get("background") and body.get("store") is False:
        raise BrokenRule("background can only be used when `store` is true", "background")
    if body.get("prompt") is not None:
        raise BrokenRule("prompt template is not supported", "prompt")
    choice = body.get("tool_choice")
    if not body.get("tools"):
        if choice == "required":
            raise BrokenRule(
                "Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice"
            )
        if isinstance(choice, dict):
            raise BrokenRule(
                "Tool choice 'function' not found in 'tools' parameter.", "tool_choice"
            )
    elif isinstance(choice, dict) and choice.get("name") not in _names(body["tools"]):
        raise BrokenRule("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def _names(tools: list[Any]) -> list[Any]:
    return [tool.get("name") for tool in tools if isinstance(tool, dict) and tool.get("name")]


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise InvalidBody("input", "string_type", "Input should be a valid string", given)
    return messages + [_message(item) for item in given]


def _message(item: dict[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    match item.get("type", "message"):
        case "message" if isinstance(item.get("role"), str):
            if isinstance(content, list):
                content = [_part(part) for part in content]
            return {"role": item["role"], "content": content}
        case "function_call_output":
            shown = {"role": "tool", "content": item.get("output")}
            return {**shown, "tool_call_id": item.get("call_id")}
        case "message":
            raise InvalidBody("input.0.role", "missing", "Field required", item)
        case _:
            return {"role": "assistant", "content": None, "item": item}


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        raise InvalidBody(
            "input.0.content", "dict_type", "Input should be a valid dictionary", part
        )
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": part.get("text")}
        case "input_image":
            return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        case _:
            return part


def _tools(tools: list[Any], choice: Any) -> tuple[list[dict[str, Any]] | None, Any]:
    """The functions among the tools as a chat names them, and the choice of one."""
    functions = [
        {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
        for tool in tools
        if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return functions or None, choice


def _format(form: Any) -> Any:
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": form.get("name", "schema"), "schema": form.get("schema")}
        return {"type": "json_schema", "json_schema": schema}
    return form
