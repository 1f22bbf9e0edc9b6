"""A stand-in for vLLM's example proxy: the same two libraries, the same way of a request.

`python -m tests.bench.targets.example_proxy --port 10001 --registration tcp://127.0.0.1:36367`

Quart in front, served by its own `run`; an aiohttp session for each leg of each request; the body
parsed and dumped for both legs; decode's answer passed on piece by piece. One process, READ only.
Engines that register stay for ever, and one counter picks both.
"""

import argparse
import copy
import itertools
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import zmq
from quart import Quart, Response, request

PIECE_BYTES = 1024
TIME_LIMIT = aiohttp.ClientTimeout(total=6 * 3600)

app = Quart("example_proxy")
engines: dict[str, dict[str, dict[str, Any]]] = {"P": {}, "D": {}}
"""by role, by address: what it registered"""
turns = itertools.count()


def hear(endpoint: str) -> None:
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        record = msgspec.msgpack.decode(socket.recv_multipart()[1])
        engines[record["type"]][record["http_address"]] = record


def headers_of(request_id: str) -> dict[str, str]:
    return {"Authorization": "Bearer none", "X-Request-Id": request_id}


async def ask_prefill(
    url: str, body: dict[str, Any], transfer_id: str, request_id: str
) -> dict[str, Any]:
    leg = copy.deepcopy(body)
    leg["max_tokens"] = 1
    leg["stream"] = False
    leg.pop("stream_options", None)
    leg["kv_transfer_params"] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "transfer_id": transfer_id,
    }
    headers = headers_of(request_id)
    async with (
        aiohttp.ClientSession(timeout=TIME_LIMIT) as session,
        session.post(url, json=leg, headers=headers) as answer,
    ):
        answer.raise_for_status()
        return await answer.json()


async def decode_pieces(
    session: aiohttp.ClientSession, answer: aiohttp.ClientResponse
) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_chunked(PIECE_BYTES):
            yield piece
    finally:
        answer.release()
        await session.close()


@app.post("/v1/completions")
@app.post("/v1/chat/completions")
async def handle() -> Response:
    body = await request.get_json()
    if not engines["P"] or not engines["D"]:
        return Response("no engine has registered", 503)
    turn = next(turns)
    prefill = pick(engines["P"], turn)
    decode = pick(engines["D"], turn)
    transfer_id = uuid.uuid4().hex
    ends = prefill["zmq_address"], decode["zmq_address"]
    request_id = f"___prefill_addr_{ends[0]}___decode_addr_{ends[1]}_{transfer_id}"
    url = f"http://{prefill['http_address']}{request.path}"
    handed_over = await ask_prefill(url, body, transfer_id, request_id)
    body["kv_transfer_params"] = {
        **handed_over["kv_transfer_params"],
        "remote_dp_size": prefill["dp_size"],
        "remote_tp_size": prefill["tp_size"],
    }
    session = aiohttp.ClientSession(timeout=TIME_LIMIT)
    answer = await session.post(
        f"http://{decode['http_address']}{request.path}",
        json=body,
        headers=headers_of(request_id),
    )
    passed_on = Response(
        decode_pieces(session, answer), answer.status, content_type=answer.content_type
    )
    passed_on.timeout = None
    return passed_on


def pick(known: dict[str, dict[str, Any]], turn: int) -> dict[str, Any]:
    return list(known.values())[turn % len(known)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.targets.example_proxy")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--registration", required=True)
    arguments = parser.parse_args()
    threading.Thread(target=hear, args=(arguments.registration,), daemon=True).start()
    app.run(host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
