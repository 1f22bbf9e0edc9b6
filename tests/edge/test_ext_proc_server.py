"""The ext_proc server over a real gRPC stream: whatever way it ends, the slots are given back."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from polling import until

from sidecar.app.ext_proc_server import SERVICE, ExtProcServer
from sidecar.edge.exchange_driver import ExchangeDriver
from sidecar.errors import StartError
from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Placed, PrefillEnded, Record, Refused, Replied
from sidecar.exchange.situation import Limits, Situation
from sidecar.exchange.transfer import Transfer
from sidecar.routing.instance import Instance, Role, State, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.slots import Demand, NoPlacement, Placement, Target
from sidecar.routing.view import Member

READY = Situation(is_draining=False, has_prefill=True, has_decode=True, cards=(ModelCard("m"),))
GOOD = PrefillAnswered(
    status=200,
    body=b'{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1]}}',
    seconds=0.1,
)


def target(role: Role, mode: TransferMode) -> Target:
    host = "10.0.0.1" if role is Role.PREFILL else "10.0.0.2"
    instance = Instance(address=f"{host}:1", role=role, transfer_mode=mode, kv_host=host)
    member = Member(
        instance=instance,
        ordinal=0,
        endpoint=f"{host}:1",
        state=State.READY,
        is_placeable=True,
        version=Version(0, 33),
    )
    return Target(member, 0)


def pair(mode: TransferMode) -> Placement:
    return Placement(target(Role.PREFILL, mode), target(Role.DECODE, mode), mode)


class Transfers:
    """What decode waits for, and how each wait ended."""

    def __init__(self) -> None:
        self.open_ids: set[str] = set()
        self.ends: list[str] = []

    def open(self, transfer: Transfer) -> None:
        self.open_ids.add(transfer.transfer_id)

    def end(self, transfer_id: str, *, is_answered: bool) -> None:
        self.open_ids.remove(transfer_id)
        self.ends.append("answered" if is_answered else "not wanted")

    def fail(self, transfer_id: str, *, is_certain: bool) -> None:
        self.open_ids.remove(transfer_id)
        self.ends.append("failed for certain" if is_certain else "failed")


class Here:
    """A worker's surroundings: prefill legs end when the test says so."""

    def __init__(self, kind: str) -> None:
        self.mode = TransferMode.READ
        self.notes: list[Record] = []
        self.legs: list[StartPrefill] = []
        self.cancelled = 0
        self.answers: asyncio.Queue[PrefillAnswered | PrefillFailed] = asyncio.Queue()
        self.faults: list[str] = []
        self.placement: Placement | NoPlacement | None = None
        self.made = 0
        self.transfers = Transfers()
        self.before_answer: Callable[[], object] = lambda: None
        self.kind = kind
        self.server = ExtProcServer(self, kind)
        self.channel: grpc.aio.Channel

    def new_exchange(self) -> Exchange:
        self.made += 1
        return Exchange(f"{self.made:032x}", 0, READY, Limits(), BodyBudget(1 << 30))

    def pick(self, _demand: Demand | None) -> Placement | NoPlacement:
        self._fail("pick")
        return self.placement or pair(self.mode)

    def confirm(self, placement: Placement, _demand: Demand) -> Placement | NoPlacement:
        self._fail("confirm")
        return placement

    def note(self, record: Record) -> None:
        self._fail("note")
        self.notes.append(record)

    def prefill(self, leg: StartPrefill) -> asyncio.Future[PrefillAnswered | PrefillFailed]:
        return asyncio.create_task(self._prefill(leg))

    async def _prefill(self, leg: StartPrefill) -> PrefillAnswered | PrefillFailed:
        self.legs.append(leg)
        self._fail("prefill")
        try:
            answer = await self.answers.get()
            self.before_answer()
            return answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def _fail(self, where: str) -> None:
        if where in self.faults:
            raise RuntimeError(f"a bug in {where}")

    def records(self, kind: type[Record]) -> list[Record]:
        return [record for record in self.notes if isinstance(record, kind)]

    @property
    def replied(self) -> Replied:
        (record,) = self.records(Replied)
        assert isinstance(record, Replied)
        return record


class Told:
    """A call whose client hears nothing."""

    def send(self, first: bytes, *others: bytes) -> None: ...

    def end(self) -> None: ...


HEADERS = pb.ProcessingRequest(
    request_headers={
        "headers": {
            "headers": [
                {"key": ":method", "raw_value": b"POST"},
                {"key": ":path", "raw_value": b"/v1/completions"},
            ]
        }
    }
)
BODY = pb.ProcessingRequest(request_body={"body": b"{}", "end_of_stream": True})


class Stream:
    """Envoy's end of one stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(f"/{SERVICE}/Process")()

    async def headers(self, path: str = "/v1/completions") -> pb.ProcessingResponse:
        request = pb.ProcessingRequest()
        for key, value in ((":method", b"POST"), (":path", path.encode())):
            header = base_pb2.HeaderValue(key=key, raw_value=value)
            request.request_headers.headers.headers.append(header)
        return await self.ask(request)

    async def send_body(self, body: bytes = b'{"model":"m","prompt":"x"}') -> None:
        message = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
        await self.call.write(message.SerializeToString())

    async def send_status(self, status: int) -> None:
        message = pb.ProcessingRequest()
        header = message.response_headers.headers.headers.add()
        header.key, header.raw_value = ":status", str(status).encode()
        await self.call.write(message.SerializeToString())

    async def ask(self, request: pb.ProcessingRequest) -> pb.ProcessingResponse:
        await self.call.write(request.SerializeToString())
        return await self.read()

    async def read(self) -> pb.ProcessingResponse:
        data = await asyncio.wait_for(self.call.read(), 5)
        assert data is not grpc.aio.EOF, "the stream ended without a reply"
        return pb.ProcessingResponse.FromString(data)

    async def is_over(self) -> bool:
        """It ends cleanly, without another reply."""
        data = await asyncio.wait_for(self.call.read(), 5)
        return data is grpc.aio.EOF and await self.call.code() is grpc.StatusCode.OK


@pytest_asyncio.fixture(params=["http2", "grpcio"])
async def here(request: pytest.FixtureRequest) -> AsyncIterator[Here]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    made = Here(request.param)
    (folder / "w0.sock").touch()
    await made.server.listen(folder / "w0.sock")
    async with grpc.aio.insecure_channel(f"unix:{folder / 'w0.sock'}") as channel:
        made.channel = channel
        yield made
    await made.server.close(0)
    shutil.rmtree(folder)


async def reading(here: Here) -> Stream:
    """A READ exchange with prefill under way."""
    stream = Stream(here.channel)
    await stream.headers()
    await stream.send_body()
    await until(lambda: here.legs)
    return stream


async def writing(here: Here) -> Stream:
    """A WRITE exchange with both legs under way."""
    here.mode = TransferMode.WRITE
    stream = await reading(here)
    reply = await stream.read()
    assert reply.HasField("request_body")
    return stream


@pytest.mark.asyncio
async def test_read_from_headers_to_the_end_of_the_stream(here: Here) -> None:
    """The reply to the body comes with prefill's answer, and ends the stream cleanly."""
    stream = await reading(here)
    assert [record.exchange for record in here.server.open_records()] == [f"{1:032x}"]
    here.answers.put_nowait(GOOD)
    reply = await stream.read()
    params = json.loads(reply.request_body.response.body_mutation.body)["kv_transfer_params"]
    assert params["remote_block_ids"] == [1]
    assert await stream.is_over()
    assert [type(r) for r in here.notes] == [Placed, PrefillEnded, Replied]
    assert here.replied.is_handed_over
    assert here.server.open_records() == ()


@pytest.mark.asyncio
async def test_times_leave_out_what_prefill_took(here: Here) -> None:
    """Overhead is the sidecar's own time, the gap runs from prefill's answer, the pick is noted."""
    stream = await reading(here)
    await asyncio.sleep(0.3)
    here.answers.put_nowait(GOOD)
    await stream.read()
    await until(lambda: here.records(Replied))
    assert here.replied.overhead_s is not None
    assert 0 < here.replied.overhead_s < 0.2
    assert here.replied.gap_s is not None
    assert 0 < here.replied.gap_s < 0.2
    (placed,) = here.records(Placed)
    assert isinstance(placed, Placed)
    assert placed.placement_s > 0


@pytest.mark.asyncio
async def test_write_with_prefill_first(here: Here) -> None:
    """Decode's headers pass at once when they come."""
    stream = await writing(here)
    here.answers.put_nowait(GOOD)
    await until(lambda: here.records(PrefillEnded))
    await stream.send_status(200)
    assert (await stream.read()).HasField("response_headers")
    assert await stream.is_over()
    assert here.replied.is_handed_over


@pytest.mark.asyncio
async def test_write_with_decode_first(here: Here) -> None:
    """Its headers are held until prefill is known."""
    stream = await writing(here)
    await stream.send_status(200)
    read = asyncio.create_task(stream.read())
    done, _ = await asyncio.wait([read], timeout=0.1)
    assert not done
    here.answers.put_nowait(GOOD)
    assert (await read).HasField("response_headers")
    assert await stream.is_over()


@pytest.mark.asyncio
async def test_write_with_a_decode_that_refuses_aborts_prefill(here: Here) -> None:
    """Its answer passes, the leg is closed."""
    stream = await writing(here)
    await stream.send_status(503)
    assert (await stream.read()).HasField("response_headers")
    assert await stream.is_over()
    await until(lambda: here.cancelled == 1)
    assert here.replied.is_handed_over
    assert here.transfers.ends == ["not wanted"]


@pytest.mark.asyncio
async def test_write_with_a_prefill_that_fails_answers_while_decode_runs(here: Here) -> None:
    """An immediate response in the middle of the request; decode's wait is told of."""
    stream = await writing(here)
    here.answers.put_nowait(PrefillFailed(reason=Reason.PREFILL_RESET))
    reply = await stream.read()
    assert reply.immediate_response.status.code == 502
    assert await stream.is_over()
    await until(lambda: here.transfers.ends == ["failed"])


@pytest.mark.asyncio
async def test_read_a_client_that_leaves_closes_prefill_and_gives_back(here: Here) -> None:
    """Envoy resets the stream; the wait is not overhead."""
    stream = await reading(here)
    await asyncio.sleep(0.3)
    stream.call.cancel()
    await until(lambda: here.records(Replied))
    assert not here.replied.is_handed_over
    assert here.replied.phase == "prefill"
    assert here.replied.overhead_s is not None
    assert here.replied.overhead_s < 0.2
    assert len(here.records(PrefillEnded)) == 1
    await until(lambda: here.cancelled == 1)
    await until(lambda: here.server.open_records() == ())


@pytest.mark.asyncio
async def test_read_a_client_that_leaves_as_prefill_answers_leaves_its_kv_on_record(
    here: Here,
) -> None:
    """Both in one turn of the loop: the answer is known though nobody can be sent to decode."""
    driver = ExchangeDriver(here, Told(), lambda _driver: None)
    driver.on_message(HEADERS.SerializeToString())
    driver.on_message(BODY.SerializeToString())
    await until(lambda: here.legs)
    here.before_answer = lambda: asyncio.get_running_loop().call_soon(driver.on_closed)
    here.answers.put_nowait(GOOD)
    await until(lambda: here.records(Replied))
    assert here.cancelled == 0
    (ended,) = here.records(PrefillEnded)
    assert isinstance(ended, PrefillEnded)
    assert (ended.seconds, ended.reason) == (0.1, None)
    assert not here.replied.is_handed_over


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("is_held", "how"), [(False, "reset"), (False, "half close"), (True, "reset")]
)
async def test_write_prefill_goes_on_when_the_client_leaves(
    here: Here, is_held: bool, how: str
) -> None:
    """Its slot is held by the server until the leg ends, though its stream is gone."""
    stream = await writing(here)
    if is_held:
        await stream.send_status(200)
        await until(lambda: [s.exchange.phase for s in here.server._running] == [Phase.HELD])
    if how == "reset":
        stream.call.cancel()
    else:
        await stream.call.done_writing()
    await until(lambda: here.records(Replied))
    assert (here.replied.phase, here.replied.is_prefill_running) == ("decode", True)
    await until(lambda: here.server.open_records() == ())
    (running,) = here.server.running_on()
    assert running.prefill is not None
    assert not here.records(PrefillEnded)
    assert here.transfers.open_ids
    here.answers.put_nowait(GOOD)
    await until(lambda: here.server.running_on() == ())
    assert here.transfers.ends == ["answered"]
    assert len(here.records(PrefillEnded)) == 1
    assert here.cancelled == 0


@pytest.mark.asyncio
async def test_close_gives_up_the_legs_that_go_on(here: Here) -> None:
    """The worker ends: what decode waits for is left as failed, to be told by the next worker."""
    stream = await writing(here)
    stream.call.cancel()
    await until(lambda: here.server.running_on() != ())
    await here.server.close(0.05)
    assert here.cancelled == 1
    assert here.transfers.ends == ["failed"]


@pytest.mark.asyncio
async def test_a_client_that_leaves_before_its_body_leaves_no_record(here: Here) -> None:
    """Nothing was taken."""
    stream = Stream(here.channel)
    await stream.headers()
    await stream.call.done_writing()
    assert await stream.is_over()
    assert here.notes == []


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["pick", "prefill", "confirm"])
async def test_a_fault_of_ours_is_a_500_and_gives_back(here: Here, where: str) -> None:
    """OpenAI's shape, reason `internal`, and no client is said to have left."""
    here.faults.append(where)
    stream = Stream(here.channel)
    await stream.headers()
    await stream.send_body()
    here.answers.put_nowait(GOOD)
    reply = await stream.read()
    assert reply.immediate_response.status.code == 500
    assert json.loads(reply.immediate_response.body)["error"]["code"] == "internal"
    assert await stream.is_over()
    ends = [r for r in here.notes if isinstance(r, Replied | Refused)]
    assert [r.reason for r in ends] == [Reason.INTERNAL]
    assert here.server.open_records() == ()


@pytest.mark.asyncio
async def test_a_fault_while_the_client_leaves_costs_nothing_else(here: Here) -> None:
    """The leg is closed, and the server forgets the call."""
    stream = await reading(here)
    here.faults.append("note")
    stream.call.cancel()
    await until(lambda: here.cancelled == 1)
    await until(lambda: not here.server._running)


@pytest.mark.asyncio
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b""])
async def test_garbage_on_a_stream_is_a_500_on_that_stream(here: Here, data: bytes) -> None:
    """The next stream is served."""
    broken, next_one = Stream(here.channel), Stream(here.channel)
    await broken.call.write(data)
    assert (await broken.read()).immediate_response.status.code == 500
    assert await broken.is_over()
    assert (await next_one.headers()).HasField("request_headers")
    next_one.call.cancel()


@pytest.mark.asyncio
async def test_a_refusal_after_a_failed_attempt_gives_back(here: Here) -> None:
    """The retry finds no slot."""
    stream = await reading(here)
    here.placement = NoPlacement("no_prefill_instance")
    here.answers.put_nowait(PrefillFailed(reason=Reason.PREFILL_RESET))
    assert (await stream.read()).immediate_response.status.code == 502
    await until(lambda: here.records(Replied))
    assert here.replied.reason is Reason.PREFILL_RESET


@pytest.mark.asyncio
async def test_many_streams_at_once_each_get_their_own_answer(here: Here) -> None:
    """More than gRPC's own limits of pending calls would let through."""
    count = 1200

    async def one() -> str:
        stream = Stream(here.channel)
        reply = await stream.headers()
        (option,) = reply.request_headers.response.header_mutation.set_headers
        stream.call.cancel()
        return option.header.raw_value.decode()

    ids = await asyncio.gather(*(one() for _ in range(count)))
    assert len(set(ids)) == count


@pytest.mark.asyncio
async def test_close_ends_running_streams_and_gives_back(here: Here) -> None:
    """After the grace."""
    stream = await reading(here)
    await here.server.close(0.05)
    await until(lambda: here.records(Replied))
    await until(lambda: here.cancelled == 1)
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.call.read()


@pytest.mark.asyncio
async def test_a_socket_that_cannot_be_had_is_one_clear_fault(here: Here, tmp_path: Path) -> None:
    """What a library says of it does not leave its module."""
    server = ExtProcServer(here, here.kind)
    with pytest.raises(StartError, match=r"cannot listen on .*/gone/w0\.sock"):
        await server.listen(tmp_path / "gone" / "w0.sock")
    await server.close(0)
