"""Prompts as canonical bytes: whatever shapes a prompt is in them, and nothing else.

A marker `<eos:N>` in a prompt's text makes its Nth token the end of sequence.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.sim.images import name_of, read_image, tokens_of_image
from sidecar.sim.words import Token, other_token

Api = Literal["completions", "chat", "responses", "messages", "batch"]

# Whatever else in a body shapes the prompt, so must reach both legs unchanged (protocol.md c).
_SHAPING_KEYS = frozenset(
    (
        "messages",
        "tools",
        "tool_choice",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "documents",
        "response_format",
        "reasoning_effort",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "truncate_prompt_tokens",
        "truncation_side",
        "cache_salt",
        "suffix",
        "prompt_embeds",
    )
)
_EOS = re.compile(r"<eos:([1-9][0-9]{0,6})>")
_PIECE = re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its canonical bytes, its length in tokens (words), its text if it has one.

    `texts` are a chat's texts, `ids` a prompt of token ids; `eos_at` is where the model ends.
    """

    canonical: bytes
    tokens: int
    text: str
    texts: tuple[str, ...] = field(default=(), repr=False)
    ids: tuple[int, ...] = field(default=(), repr=False)
    eos_at: int | None = None


def read_prompts(
    api: Api, body: Mapping[str, Any], adapter: str | None = None
) -> tuple[Prompt, ...]:
    """The prompts of a request body: one for a chat, one or several for completions and batch.

    `body` is a chat's for every API but completions; `adapter` is a LoRA adapter, whose KV
    differs from the base model's. Raises ValueError, naming what is wrong, if the prompt or
    messages have no usable type.
    """
    shaping = {key: body[key] for key in body.keys() & _SHAPING_KEYS if body[key] is not None}
    if adapter is not None:
        shaping["adapter"] = adapter
    if api == "batch":
        conversations = body.get("messages")
        if not isinstance(conversations, list) or not conversations:
            raise ValueError("messages: Input should be a valid list of conversations")
        return tuple(_chat_prompt(one, shaping) for one in conversations)
    if api != "completions":
        return (_chat_prompt(body.get("messages"), shaping),)
    prompt = body.get("prompt")
    if prompt is None and isinstance(body.get("prompt_embeds"), str):
        prompt = ""
    tail = b"\0" + _canonical(shaping) if shaping else b""
    return tuple(_completion_prompt(one, tail) for one in _split_prompts(prompt))


def _split_prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        # A list of ids is one prompt, a list of strings or of lists is several (protocol.md h).
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(one, str) for one in prompt):
            return prompt
        if all(isinstance(one, list) and _are_ids(one) for one in prompt):
            return prompt
    raise ValueError("prompt: Input should be a valid string or list of token ids")


def _are_ids(ids: list[Any]) -> bool:
    return all(type(one) is int and one >= 0 for one in ids)


def _completion_prompt(prompt: str | list[int], tail: bytes) -> Prompt:
    if isinstance(prompt, str):
        canonical = b"text:" + prompt.encode("utf-8", "surrogatepass") + tail
        tokens = max(1, len(prompt.split()))
        return Prompt(canonical, tokens, prompt, eos_at=_eos_at((prompt,)))
    ids = ",".join(map(str, prompt)).encode()
    text = "".join(_text_of_id(one) for one in prompt)
    return Prompt(b"ids:" + ids + tail, max(1, len(prompt)), text, ids=tuple(prompt))


def _text_of_id(number: int) -> str:
    return f"<{number}>"


def _chat_prompt(messages: Any, shaping: dict[str, Any]) -> Prompt:
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError("messages: Input should be a valid list of objects")
    if not messages:
        raise ValueError("messages: list should have at least 1 item")
    named, images = _take_images(messages)
    canonical = b"chat:" + _canonical({**shaping, "messages": named})
    if images:
        canonical += b"\0" + b"\0".join(images)
    texts = tuple(text for message in messages for text in texts_of(message.get("content")))
    tokens = 1 + sum(len(text.split()) for text in texts) + sum(map(tokens_of_image, images))
    return Prompt(canonical, tokens, "", texts=texts, eos_at=_eos_at(texts))


def texts_of(content: Any) -> Iterator[str]:
    """The texts of a message's content: itself, or those of its parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _take_images(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The messages with their images named, and the images."""
    images: list[bytes] = []
    if not any(isinstance(message.get("content"), list) for message in messages):
        return messages, images

    def name(part: Any) -> Any:
        if not isinstance(part, dict):
            raise ValueError("messages: a content part should be an object")
        if part.get("type", "image_url" if "image_url" in part else None) != "image_url":
            return part
        source = part.get("image_url")
        image = read_image(source.get("url") if isinstance(source, dict) else source)
        images.append(image)
        return {**part, "image_url": name_of(image)}

    named = [
        {**message, "content": [name(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
    return named, images


def _eos_at(texts: Sequence[str]) -> int | None:
    for text in texts:
        if "<eos:" in text and (found := _EOS.search(text)):
            return int(found[1])
    return None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tokens_of_prompt(prompt: Prompt) -> list[Token]:
    """The prompt's own tokens, `prompt.tokens` of them, for echo, logprobs and rendering."""
    if prompt.ids:
        return [Token(one, _text_of_id(one)) for one in prompt.ids]
    if prompt.canonical.startswith(b"chat:"):
        tokens = [other_token("<chat>")]
        for text in prompt.texts:
            tokens += [other_token(piece) for piece in _pieces(text)]
        return tokens + [other_token("<image>")] * (prompt.tokens - len(tokens))
    return [other_token(piece) for piece in _pieces(prompt.text)] or [other_token(prompt.text)]


def _pieces(text: str) -> list[str]:
    """The words with the blanks before them; the blanks after the last are its own."""
    pieces = _PIECE.findall(text)
    if pieces:
        pieces[-1] += text[sum(map(len, pieces)) :]
    return pieces
