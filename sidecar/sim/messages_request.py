"""POST /v1/messages, Anthropic's API: its body checked, and turned into a chat as vLLM does."""

import json
from collections.abc import Mapping
from typing import Any

from sidecar.sim.api_error import BrokenMessage, InvalidBody
from sidecar.sim.fields import (
    BOOL,
    INT,
    LIST,
    MOST_STOPS,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    Kind,
    check_types,
    require,
)

_KINDS: Mapping[str, Kind] = {
    "model": TEXT,
    "messages": LIST,
    "max_tokens": INT,
    "metadata": OBJECT,
    "output_config": OBJECT,
    "thinking": OBJECT,
    "stop_sequences": TEXTS,
    "stream": BOOL,
    "temperature": NUMBER,
    "tool_choice": OBJECT,
    "tools": LIST,
    "top_k": INT,
    "top_p": NUMBER,
    "cache_salt": TEXT,
    "kv_transfer_params": OBJECT,
    "chat_template_kwargs": OBJECT,
}
_NOT_NULL = ("model", "messages", "max_tokens")
_PASSED = (
    "model",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "cache_salt",
    "kv_transfer_params",
    "chat_template_kwargs",
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_LEAST_THINKING = 1024


def chat_of_messages(body: Mapping[str, Any], is_count: bool = False) -> dict[str, Any]:
    """The chat body; raises InvalidBody or BrokenMessage. `is_count`: only to count its tokens."""
    require(body, "model", "messages", *(() if is_count else ("max_tokens",)))
    check_types(body, _KINDS, _NOT_NULL)
    if not body["model"]:
        raise BrokenMessage("Model is required", "body.model")
    if not is_count and body["max_tokens"] <= 0:
        raise BrokenMessage("max_tokens must be positive", "body.max_tokens")
    if len(body.get("stop_sequences") or ()) > MOST_STOPS:
        problem = f"List should have at most {MOST_STOPS} items"
        raise InvalidBody("stop_sequences", "too_long", problem, body["stop_sequences"])
    _check_thinking(body)
    chat = {key: body[key] for key in _PASSED if key in body}
    chat["messages"] = _system(body.get("system")) + [
        message for given in body["messages"] for message in _messages(given)
    ]
    if stops := body.get("stop_sequences"):
        chat["stop"] = stops
    _pass_tools(body, chat)
    _pass_output(body, chat)
    return chat


def _check_thinking(body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or budget < _LEAST_THINKING:
        problem = f"Input should be greater than or equal to {_LEAST_THINKING}"
        raise InvalidBody("thinking.enabled.budget_tokens", "greater_than_equal", problem, budget)
    # A prefill leg has one token, and is not asked.
    if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
        return
    if budget >= body.get("max_tokens", budget + 1):
        raise BrokenMessage("thinking.budget_tokens must be less than max_tokens")


def _system(given: Any) -> list[dict[str, Any]]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise InvalidBody("system", "string_type", "Input should be a valid string", given)
    text = "".join(block.get("text") or "" for block in given if block.get("type") == "text")
    return [{"role": "system", "content": text}] if text else []


def _messages(given: Any) -> list[dict[str, Any]]:
    """One of Anthropic's messages as a chat's: tool results are messages of their own there."""
    if not isinstance(given, dict) or given.get("role") not in ("user", "assistant", "system"):
        problem = "Input should be 'user', 'assistant' or 'system'"
        raise InvalidBody("messages.0.role", "literal_error", problem, given)
    role, content = given["role"], given.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        problem = "Input should be a valid string"
        raise InvalidBody("messages.0.content", "string_type", problem, content)
    results: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": role}
    parts: list[dict[str, Any]] = []
    for block in content:
        _add_block(block, message, parts, results)
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        message["content"] = parts[0]["text"] if is_text else parts
    return results + ([message] if len(message) > 1 or role == "assistant" else [])


def _add_block(
    block: Any,
    message: dict[str, Any],
    parts: list[dict[str, Any]],
    results: list[dict[str, Any]],
) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            parts.append({"type": "text", "text": block.get("text") or ""})
        case "image":
            parts.append({"type": "image_url", "image_url": {"url": _url(block.get("source"))}})
        case "tool_use":
            arguments = json.dumps(block.get("input") or {})
            function = {"name": block.get("name") or "", "arguments": arguments}
            call = {"id": block.get("id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        case "tool_result":
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
            results.append({**result, "content": _text_of_result(block.get("content"))})
        case "thinking":
            message["reasoning"] = message.get("reasoning", "") + (block.get("thinking") or "")
        case "redacted_thinking" | "tool_reference" | "tool_addition" | "tool_removal":
            pass
        case _:
            problem = "Input should be 'text', 'image', 'tool_use', 'tool_result' or 'thinking'"
            raise InvalidBody("messages.0.content.0.type", "literal_error", problem, block)


def _url(source: Any) -> str:
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        return str(source.get("url", ""))
    return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"


def _text_of_result(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [one.get("text", "") for one in content or () if isinstance(one, dict)]
    return "\n".join(texts)


def _pass_tools(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    choice = body.get("tool_choice") or {}
    kind = choice.get("type", "auto")
    if kind not in (*_CHOICES, "tool"):
        problem = "Input should be 'auto', 'any', 'tool' or 'none'"
        raise InvalidBody("tool_choice.type", "literal_error", problem, kind)
    if kind == "tool" and not choice.get("name"):
        raise BrokenMessage("tool_choice.name is required when type is 'tool'")
    tools = body.get("tools")
    if not tools:
        return
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
            raise InvalidBody("tools.0.input_schema", "missing", "Field required", tool)
    chat["tools"] = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools
    ]
    chat["tool_choice"] = _CHOICES.get(kind) or {
        "type": "function",
        "function": {"name": choice["name"]},
    }


def _pass_output(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    config = body.get("output_config") or {}
    schema = (config.get("format") or {}).get("schema")
    if schema is not None:
        given = {"name": "json_schema", "schema": schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": given}
    thinking = (body.get("thinking") or {}).get("type")
    if config.get("effort") is not None:
        chat["reasoning_effort"] = config["effort"]
    if thinking == "disabled":
        chat["reasoning_effort"] = "none"
    elif thinking == "enabled":
        chat["thinking_token_budget"] = body["thinking"]["budget_tokens"]
