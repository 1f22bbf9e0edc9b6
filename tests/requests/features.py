"""What a client of OpenAI's API can ask for. `test_features` shows that the pool answers each as
one engine alone does, streamed and whole, in READ and WRITE; `document` makes docs/requests.md of
it.
"""

import base64
from typing import Any

from tests.requests.feature import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Feature, Served

ALONE, SINGLE, PREFILL = Served.ALONE, Served.SINGLE, Served.PREFILL

PROMPT = "The quick brown fox jumps over the lazy dog and tells"
LONG = "word " * 600
ENDS = "A tale that ends by itself <eos:4> after some words"
ENDS_AT_ONCE = "A tale that is over <eos:1> at its first token"
ASKED = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Tell me about rivers"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Asks for the {name}",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "time")
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
# A picture of one red pixel.
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
        "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
).decode()


def text(name: str, served: Served = Served.PAIR, status: int = 200, **body: Any) -> Feature:
    """Of `/v1/completions`; `streams` is not a field of a body."""
    streams = body.pop("streams", True)
    asked = {"prompt": PROMPT, "max_tokens": 9, "temperature": 0} | body
    return Feature(name, COMPLETIONS, asked, served, status, streams)


def chat(name: str, served: Served = Served.PAIR, status: int = 200, **body: Any) -> Feature:
    streams = body.pop("streams", True)
    asked = {"messages": ASKED, "max_tokens": 9, "temperature": 0} | body
    return Feature(name, CHAT, asked, served, status, streams)


def without(feature: Feature, *names: str) -> Feature:
    body = {k: v for k, v in feature.body.items() if k not in names}
    return Feature(feature.name, feature.path, body, feature.served, feature.status)


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


FEATURES = [
    # ---- How long the answer is
    text("a text completion"),
    without(text("`max_tokens` absent: the default of the API"), "max_tokens"),
    text("`max_tokens: null`", max_tokens=None),
    text("`max_tokens: 1`", max_tokens=1),
    chat("a chat completion"),
    without(chat("`max_tokens` absent: the rest of the context"), "max_tokens"),
    chat("`max_tokens: null`", max_tokens=None),
    chat("`max_tokens: 1`", max_tokens=1),
    chat("`max_completion_tokens`", max_completion_tokens=5),
    chat("`max_completion_tokens: null`", max_completion_tokens=None),
    text("an answer that ends by itself", prompt=ENDS),
    text("an answer that ends at its first token", prompt=ENDS_AT_ONCE),
    text("`min_tokens`", prompt=ENDS, min_tokens=7),
    text("`ignore_eos`", prompt=ENDS, ignore_eos=True),
    chat("an answer that ends by itself", messages=[{"role": "user", "content": ENDS}]),
    chat("`min_tokens`", messages=[{"role": "user", "content": ENDS}], min_tokens=7),
    chat("`ignore_eos`", messages=[{"role": "user", "content": ENDS}], ignore_eos=True),
    text("`stop`: one string", stop="a"),
    text("`stop`: several, kept in the text", stop=["e", "i"], include_stop_str_in_output=True),
    text("`stop_token_ids`", stop_token_ids=[5, 7]),
    chat("`stop`", stop=["a"]),
    # ---- What it carries
    text("`stream_options.include_usage`", stream=True, stream_options={"include_usage": True}),
    chat("`stream_options.include_usage`", stream=True, stream_options={"include_usage": True}),
    text(
        "`continuous_usage_stats`",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    text("`logprobs`", logprobs=3),
    text("`logprobs: 0`", logprobs=0),
    chat("`logprobs` and `top_logprobs`", logprobs=True, top_logprobs=2),
    # ---- How it is drawn
    text("`seed` and `temperature`", seed=7, temperature=0.8, top_p=0.9),
    chat("`seed` and `temperature`", seed=7, temperature=0.8),
    text("`user`", user="somebody"),
    chat("`user`", user="somebody"),
    text("a field that nobody knows", its_own={"deep": [1, 2.50, None]}),
    chat("a field that nobody knows", its_own=[True]),
    # ---- What is asked
    text("a prompt of one token", prompt="river"),
    text("a prompt of token ids", prompt=[5, 17, 300, 42, 7, 7, 9]),
    text("a list of one prompt", prompt=[PROMPT]),
    text("a list of one list of token ids", prompt=[[5, 17, 300, 42]]),
    text("a long prompt, over many KV blocks", prompt=LONG),
    text("a prompt of 4 MB", prompt="many words " * 380_000, streams=False),
    text("a prompt in other scripts", prompt="Über 川 и реки 🌊🌊 " * 20),
    chat("a long conversation", messages=ASKED + ASKED * 20),
    chat("text in parts", messages=user({"type": "text", "text": "Tell me about rivers"})),
    chat(
        "an image as a data URL",
        messages=user(
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ),
    ),
    # ---- Tools and structure
    chat("tools: `tool_choice` auto, and no call", tools=TOOLS),
    chat(
        "tools: `tool_choice` auto, and a call",
        tools=TOOLS,
        tool_choice="auto",
        messages=[{"role": "user", "content": "<tool> What is the weather?"}],
        max_tokens=40,
    ),
    chat("tools: `tool_choice` none", tools=TOOLS, tool_choice="none"),
    chat("tools: `tool_choice` required", tools=TOOLS, tool_choice="required", max_tokens=40),
    chat(
        "tools: a named one",
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "time"}},
        max_tokens=40,
    ),
    chat("`response_format`: an object", response_format={"type": "json_object"}, max_tokens=40),
    chat(
        "`response_format`: a schema",
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
        max_tokens=60,
    ),
    text("`structured_outputs`", structured_outputs={"choice": ["yes", "no"]}),
    # ---- The other APIs
    Feature(
        "a response",
        RESPONSES,
        {"input": "Tell me about rivers", "max_output_tokens": 9, "temperature": 0},
    ),
    Feature(
        "a response to a conversation, with `instructions`",
        RESPONSES,
        {"input": ASKED[1:], "instructions": "Be short.", "max_output_tokens": 9, "temperature": 0},
    ),
    Feature(
        "a response that ends at its first token",
        RESPONSES,
        {"input": ENDS_AT_ONCE, "max_output_tokens": 9, "temperature": 0},
    ),
    Feature("a message", MESSAGES, {"messages": ASKED[1:], "max_tokens": 9, "temperature": 0}),
    Feature(
        "a message with `system` and `stop_sequences`",
        MESSAGES,
        {
            "messages": ASKED[1:],
            "max_tokens": 9,
            "system": "Be short.",
            "stop_sequences": ["a"],
            "temperature": 0,
        },
    ),
    Feature(
        "a message that ends at its first token: nothing masks that on the prefill leg",
        MESSAGES,
        {
            "messages": [{"role": "user", "content": ENDS_AT_ONCE}],
            "max_tokens": 9,
            "temperature": 0,
        },
        # In WRITE, legs at once, decode was dispatched with it.
        modes=("READ",),
        in_the_other="in WRITE, at once, 502 `prefill_without_kv` ([failures.md](failures.md))",
        served=ALONE,
    ),
    # ---- What one KV transfer cannot carry
    text("`n` above 1", ALONE, n=3, temperature=0.8, seed=7),
    chat("`n` above 1", ALONE, n=2, temperature=0.8, seed=7),
    text("several prompts", ALONE, prompt=[PROMPT, "Another one"]),
    text("several prompts of token ids", ALONE, prompt=[[5, 6], [7, 8, 9]]),
    text("beam search", ALONE, use_beam_search=True, n=2, streams=False),
    text("`echo`", ALONE, echo=True),
    text("`echo` with `logprobs`", ALONE, echo=True, logprobs=1),
    text("`echo` and no token of an answer", ALONE, echo=True, max_tokens=0, logprobs=1),
    chat("`echo`", ALONE, echo=True),
    text("`prompt_logprobs`", ALONE, prompt_logprobs=1, streams=False),
    chat("`prompt_logprobs`", ALONE, prompt_logprobs=1, streams=False),
    Feature(
        "several chats at once",
        "/v1/chat/completions/batch",
        {"messages": [ASKED, ASKED[1:]], "max_tokens": 9, "temperature": 0},
        ALONE,
        streams=False,
    ),
    # ---- What engines refuse: in their own words, before anything is transferred
    text("a wrong type that both legs have", PREFILL, 400, temperature="hot"),
    text("a value out of range that both legs have", PREFILL, 400, top_p=7),
    chat("a conversation that is none", PREFILL, 400, messages="hello"),
    chat(
        "an image that is none",
        PREFILL,
        400,
        messages=user({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}}),
    ),
    text("`max_tokens: 0`", ALONE, 400, max_tokens=0),
    text("`max_tokens` that is a number without end", ALONE, 400, max_tokens=10**400),
    text("`max_tokens` above the model's context", ALONE, 400, max_tokens=1 << 24),
    text("`min_tokens` above `max_tokens`", ALONE, 400, min_tokens=10),
    text("`n: 0`", ALONE, 400, n=0),
    text(
        "`stream_options` without `stream`",
        ALONE,
        400,
        stream_options={"include_usage": True},
        streams=False,
    ),
    text("`prompt_logprobs` streamed", ALONE, 400, prompt_logprobs=1, stream=True),
    text("a model that nobody serves", ALONE, 404, model="nobody-serves-this"),
    chat("a model that nobody serves", ALONE, 404, model="nobody-serves-this"),
    # ---- One instance
    Feature("tokenize", "/tokenize", {"prompt": PROMPT}, SINGLE, streams=False),
    Feature("detokenize", "/detokenize", {"tokens": [72, 105]}, SINGLE, streams=False),
    Feature(
        "count the tokens of a message",
        "/v1/messages/count_tokens",
        {"messages": ASKED[1:]},
        SINGLE,
        streams=False,
    ),
    Feature(
        "a completion's prompt as tokens",
        "/v1/completions/render",
        {"prompt": PROMPT},
        SINGLE,
        streams=False,
    ),
    Feature("embeddings", "/v1/embeddings", {"input": ["a", "b"]}, SINGLE, streams=False),
    Feature("pooling", "/pooling", {"input": "a"}, SINGLE, streams=False),
    Feature("classify", "/classify", {"input": "a"}, SINGLE, streams=False),
    Feature("score", "/v1/score", {"text_1": "a", "text_2": ["b", "c"]}, SINGLE, streams=False),
    Feature("rerank", "/v1/rerank", {"query": "a", "documents": ["b"]}, SINGLE, streams=False),
    Feature("the version", "/version", {}, SINGLE, streams=False, method="GET"),
]
