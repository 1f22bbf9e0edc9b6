"""What the mock engines answer, byte for byte, so that a client can tell if it got just that."""

import functools
import json

MODEL = "bench-model"
PATH = "/v1/chat/completions"
VERSION = json.dumps({"version": "0.33.0"})
MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1}]})
DONE = b"data: [DONE]\n\n"
SENTENCE = 'The quick brown fox said "no" to the lazy dog, and then\nnothing happened. '
"""with what JSON escapes, as prompts have it"""
BLOCKS = 40
"""KV blocks that prefill hands over: a prompt of 640 tokens"""


def decode_answer() -> str:
    """A whole answer of decode, some 600 bytes."""
    text = "The benchmark's engine computes nothing and says always the same. " * 3
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1700000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "tool_calls": []},
                    "logprobs": None,
                    "finish_reason": "length",
                    "stop_reason": None,
                }
            ],
            "usage": {"prompt_tokens": 160, "total_tokens": 208, "completion_tokens": 48},
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }
    )


def prefill_answer(http_address: str, handshake_port: int, notify_port: int) -> str:
    """A MoRI-IO prefill's answer in READ (docs/protocol.md c)."""
    host = http_address.partition(":")[0]
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1700000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "The"},
                    "logprobs": None,
                    "finish_reason": "length",
                }
            ],
            "usage": {"prompt_tokens": 160, "total_tokens": 161, "completion_tokens": 1},
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": list(range(BLOCKS)),
                "remote_engine_id": http_address,
                "remote_host": host,
                "remote_handshake_port": handshake_port,
                "remote_notify_port": notify_port,
                "remote_dp_rank": 0,
                "remote_dp_rank_override": True,
                "remote_dp_size": 1,
                "tp_size": 1,
                "transfer_id": "bench",
            },
        }
    )


def stream_events(count: int) -> list[bytes]:
    """The token events of a streamed answer, some 200 bytes each; `DONE` follows them."""
    events = []
    for index in range(count):
        chunk = {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": f" word{index:05d}"},
                    "logprobs": None,
                    "finish_reason": None if index < count - 1 else "length",
                }
            ],
        }
        events.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return events


@functools.cache
def chat_body(size_bytes: int, is_streamed: bool = False) -> bytes:
    """A client's request of about that many bytes: a conversation of turns as long as it takes."""
    request = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You answer briefly."}],
        "max_tokens": 48,
        "temperature": 0.7,
        "top_p": 0.95,
        "stream": is_streamed,
    }
    full, rest = divmod(max(0, size_bytes - len(json.dumps(request))), len(json.dumps(turn(0))))
    turns = [turn(index) for index in range(full)]
    # Its own frame is in the rest; a rest that is all frame is left out.
    if rest > len(json.dumps(turn(full, ""))):
        turns.append(turn(full, ("word " * rest)[: rest - len(json.dumps(turn(full, "")))]))
    request["messages"] = [{"role": "system", "content": "You answer briefly."}, *turns]
    return json.dumps(request).encode()


def turn(index: int, content: str = SENTENCE * 50) -> dict[str, str]:
    return {"role": ("user", "assistant")[index % 2], "content": content}
