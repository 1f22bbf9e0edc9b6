"""What a streamed answer says, however its tokens were grouped into events.

An engine sends what it has when it comes to it: two streams of the same tokens are seldom cut
alike.
"""

from collections.abc import Iterable
from typing import Any

from tests.requests.answer import Answer


def merged(answer: Answer) -> Any:
    """All that was said. Of a stream: text, ends, calls, log probabilities of each choice, usage,
    and the events that carry none of these, as they came."""
    said = _without_runners_up(answer.said)
    if not answer.content_type.startswith("text/event-stream"):
        return said
    whole: dict[str, Any] = {"other": []}
    for event in said:
        if not isinstance(event, dict):
            whole["other"].append(event)
        elif "choices" in event:
            _add_chunk(whole, event)
        elif str(event.get("type", "")).endswith("delta"):
            _add_delta(whole, event)
        else:
            whole["other"].append(_without(event, "sequence_number"))
    # Names of events, one for each event of which some are merged.
    whole["other"] = [one for one in whole["other"] if not _is_name_of_delta(one)]
    return whole


def _add_chunk(whole: dict[str, Any], event: dict[str, Any]) -> None:
    for choice in event["choices"]:
        so_far = whole.setdefault(
            choice["index"], {"text": "", "end": [], "calls": "", "logprobs": [], "ids": []}
        )
        delta = choice.get("delta") or {}
        so_far["text"] += choice.get("text") or delta.get("content") or ""
        so_far["ids"] += choice.get("token_ids") or []
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            so_far["calls"] += (function.get("name") or "") + (function.get("arguments") or "")
        if choice.get("finish_reason"):
            so_far["end"].append((choice["finish_reason"], choice.get("stop_reason")))
        _add_logprobs(so_far["logprobs"], choice.get("logprobs"))
    if event.get("usage"):
        whole["usage"] = event["usage"]


def _add_logprobs(so_far: list[Any], logprobs: dict[str, Any] | None) -> None:
    if not logprobs:
        return
    if "content" in logprobs:
        so_far += logprobs["content"] or []
        return
    columns = [logprobs[name] or [] for name in ("tokens", "token_logprobs", "top_logprobs")]
    so_far += zip(*columns, strict=False)


def _without_runners_up(said: Any) -> Any:
    """But for which tokens were likely beside the one that was taken: of two as likely as each
    other either may be named."""
    if isinstance(said, list):
        return [_without_runners_up(one) for one in said]
    if not isinstance(said, dict):
        return said
    kept = {key: _without_runners_up(value) for key, value in said.items()}
    likely = said.get("top_logprobs")
    if isinstance(likely, list):
        kept["top_logprobs"] = [_likelihoods(one) for one in likely]
    return kept


def _likelihoods(one: Any) -> Any:
    """Of a chat `{"token", "logprob", ...}`, of a completion `{token: logprob, ...}`."""
    if not isinstance(one, dict):
        return one
    return one["logprob"] if "logprob" in one else sorted(one.values())


def _add_delta(whole: dict[str, Any], event: dict[str, Any]) -> None:
    """Of Responses (`delta` is text) and Messages (an object)."""
    delta = event.get("delta")
    if isinstance(delta, str):
        whole["text"] = whole.get("text", "") + delta
    elif isinstance(delta, dict) and "text" in delta:
        whole["text"] = whole.get("text", "") + delta["text"]
    else:
        whole["other"].append(event)


def _is_name_of_delta(event: Any) -> bool:
    return isinstance(event, str) and event.startswith("event: ") and event.endswith("delta")


def _without(event: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in event.items() if k not in names}


def differences(one: Any, other: Any, at: str = "answer") -> Iterable[str]:
    """Where two values differ, a line each."""
    if type(one) is not type(other):
        yield f"{at}: {str(one)[:200]} != {str(other)[:200]}"
    elif isinstance(one, dict):
        for key in sorted({*one, *other}, key=str):
            if one.get(key) != other.get(key):
                yield from differences(one.get(key), other.get(key), f"{at}.{key}")
    elif isinstance(one, list) and len(one) == len(other):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                yield from differences(left, right, f"{at}[{i}]")
    elif one != other:
        yield f"{at}: {str(one)[:200]} != {str(other)[:200]}"
