"""What form an answer takes: free words, JSON of a response format, or a tool call.

A form turns the model's words into its tokens. The words are those of the prompt and its blocks,
so JSON and tool calls too are right only if the blocks are.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.sim.api_error import BrokenRule, InvalidBody
from sidecar.sim.choice_run import Call
from sidecar.sim.prompt import texts_of
from sidecar.sim.schema_json import any_object, pieces_of, value_of_schema
from sidecar.sim.words import Token, other_token

TOOL_MARKER = "<tool>"
"""In the last message: with tool choice "auto" the model calls a tool."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Content as JSON; without a schema any object."""

    schema: Any = None

    def shape(self, words: Iterator[str]) -> tuple[Call | None, list[Token]]:
        """The tokens of one choice."""
        text = any_object(words) if self.schema is None else value_of_schema(self.schema, words)
        return None, [other_token(piece) for piece in pieces_of(text)]


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """Content as one of several given texts."""

    choices: tuple[str, ...]

    def shape(self, words: Iterator[str]) -> tuple[Call | None, list[Token]]:
        """The tokens of one choice."""
        number = int.from_bytes(next(words).encode(), "big") % len(self.choices)
        return None, [other_token(piece) for piece in pieces_of(self.choices[number])]


@dataclass(frozen=True, slots=True)
class ToolForm:
    """A call of one of these functions, each by name and parameters' schema."""

    functions: tuple[tuple[str, Any], ...]

    def shape(self, words: Iterator[str]) -> tuple[Call | None, list[Token]]:
        """The call and its tokens: a head, the arguments, a tail."""
        first, second = next(words).strip(), next(words).strip()
        name, schema = self.functions[int.from_bytes(first.encode(), "big") % len(self.functions)]
        arguments = any_object(words) if not schema else value_of_schema(schema, words)
        head = other_token(json.dumps({"name": name, "parameters": 0})[:-2])
        pieces = [other_token(piece, piece) for piece in pieces_of(arguments)]
        call = Call(f"chatcmpl-tool-{first}{second}", name)
        return call, [head, *pieces, other_token("}")]


Form = JsonForm | ChoiceForm | ToolForm


def read_form(body: Mapping[str, Any]) -> Form | None:
    """The form a chat or completion body asks for; None: free words. Raises BrokenRule."""
    tools = _read_tools(body)
    if tools is not None:
        return tools
    found = _read_response_format(body.get("response_format"))
    return found or _read_structured_outputs(body.get("structured_outputs"))


def _read_response_format(given: Any) -> Form | None:
    if given is None:
        return None
    kind = given.get("type")
    if kind == "json_object":
        return JsonForm()
    if kind == "json_schema":
        schema = given.get("json_schema")
        if schema is None:
            raise BrokenRule(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided.",
                "response_format",
            )
        if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
            raise InvalidBody("response_format.json_schema.name", "missing", "Field required")
        return JsonForm(schema.get("schema") or {"type": "object"})
    if kind not in ("text", "structural_tag"):
        raise InvalidBody(
            "response_format.type",
            "literal_error",
            "Input should be 'text', 'json_object', 'json_schema' or 'structural_tag'",
            kind,
        )
    return None


def _read_structured_outputs(given: Any) -> Form | None:
    if given is None:
        return None
    if sum(given.get(key) is not None for key in ("json", "regex", "choice")) > 1:
        raise BrokenRule(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or "
            "'choice').",
            "structured_outputs",
        )
    if (schema := given.get("json")) is not None:
        try:
            return JsonForm(json.loads(schema) if isinstance(schema, str) else schema)
        except ValueError:
            raise BrokenRule("Invalid JSON grammar specification.", "structured_outputs") from None
    if given.get("json_object"):
        return JsonForm()
    choices = given.get("choice")
    if choices and isinstance(choices, list) and all(isinstance(one, str) for one in choices):
        return ChoiceForm(tuple(choices))
    return None  # a regex or a grammar shapes the words alone, by the key of sampling


def _read_tools(body: Mapping[str, Any]) -> ToolForm | None:
    """vLLM's checks of tools and tool_choice, in its order."""
    tools = body.get("tools")
    if tools == []:
        raise BrokenRule(
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely.",
            "tools",
        )
    functions = _read_functions(tools)
    choice = body.get("tool_choice", "auto" if tools else None)
    if choice is None or choice == "none":
        return None
    if not tools:
        raise BrokenRule("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice == "required":
        return ToolForm(functions)
    if choice == "auto":
        return ToolForm(functions) if _calls_by_itself(body) else None
    if not isinstance(choice, dict):
        raise BrokenRule(
            f"Invalid value for `tool_choice`: {choice}! Only named tools, "
            '"none", "auto" or "required" are supported.',
            "tool_choice",
        )
    return ToolForm((_named(choice, functions),))


def _read_functions(tools: Any) -> tuple[tuple[str, Any], ...]:
    functions = []
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidBody("tools.0.function", "missing", "Field required", tool)
        functions.append((function["name"], function.get("parameters")))
    return tuple(functions)


def _named(choice: dict[str, Any], functions: tuple[tuple[str, Any], ...]) -> tuple[str, Any]:
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        raise BrokenRule(
            f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}",
            "tool_choice.function",
        )
    if "name" not in function:
        raise BrokenRule(
            f"Expected field `name` in `function` in `tool_choice`! {usage}",
            "tool_choice.function.name",
        )
    for one in functions:
        if one[0] == function["name"]:
            return one
    raise BrokenRule(
        "The tool specified in `tool_choice` does not match any of the specified `tools`",
        "tool_choice",
    )


def _calls_by_itself(body: Mapping[str, Any]) -> bool:
    last = body["messages"][-1] if body.get("messages") else {}
    return any(TOOL_MARKER in text for text in texts_of(last.get("content")))


def is_named(body: Mapping[str, Any]) -> bool:
    """One tool is forced: such a call ends with reason "stop" and not "tool_calls"."""
    return isinstance(body.get("tool_choice"), dict)
