"""aiohttp and httpx, which many programs use without an SDK."""

import asyncio
import json

import aiohttp
import pytest

from tests.clients.pool import ASKED, MODEL, Pool, chat_text, went_through_both

httpx = pytest.importorskip("httpx", reason="the extra `clients` is not installed")
pytest.importorskip("h2", reason="the extra `clients` is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio, pytest.mark.usefixtures("by_pairs")]


def chat(number: int, **more: object) -> tuple[dict[str, object], str]:
    """A body, and what the model says to it."""
    messages = [{"role": "user", "content": f"Tell me about river {number}"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 6, **more}
    return body, chat_text(6, messages)


def text_of(answer: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    return answer["choices"][0]["message"]["content"]


async def test_aiohttp_keeps_its_connection(pool: Pool) -> None:
    """One connection serves one request after the other."""
    connector = aiohttp.TCPConnector(limit=1)
    before = pool.stack.envoy_stat("http.edge.downstream_cx_total")
    async with aiohttp.ClientSession(connector=connector) as session:
        for number in range(8):
            body, expected = chat(number)
            async with session.post(f"{pool.base}/chat/completions", json=body) as answer:
                assert text_of(await answer.json()) == expected
    assert pool.stack.envoy_stat("http.edge.downstream_cx_total") == before + 1


async def test_aiohttp_streams(pool: Pool) -> None:
    """Lines of events as they come."""
    body = {"model": MODEL, "messages": ASKED, "max_tokens": 9, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{pool.base}/chat/completions", json=body) as answer,
    ):
        lines = [line.decode().strip() async for line in answer.content]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    said = [e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]]
    assert "".join(said) == chat_text(9)
    assert lines[-2:] == ["data: [DONE]", ""]


async def test_httpx_with_http2(pool: Pool) -> None:
    """Many requests at once are streams of one connection."""
    before = pool.stack.envoy_stat("http.edge.downstream_cx_http2_total")
    async with httpx.AsyncClient(http1=False, http2=True, timeout=20) as client:

        async def ask(number: int) -> None:
            body, expected = chat(number)
            answer = await client.post(f"{pool.base}/chat/completions", json=body)
            assert answer.http_version == "HTTP/2"
            assert went_through_both(answer.headers)
            assert text_of(answer.json()) == expected

        await asyncio.gather(*(ask(number) for number in range(24)))
    assert pool.stack.envoy_stat("http.edge.downstream_cx_http2_total") == before + 1


async def test_httpx_streams_with_http2(pool: Pool) -> None:
    """One stream among others."""
    async with httpx.AsyncClient(http1=False, http2=True, timeout=20) as client:

        async def ask(number: int) -> None:
            body, expected = chat(number, stream=True)
            said = ""
            async with client.stream("POST", f"{pool.base}/chat/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            said += choice["delta"].get("content") or ""
            assert said == expected

        await asyncio.gather(*(ask(number) for number in range(12)))
