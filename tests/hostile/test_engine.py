"""A hostile engine core: whatever it sends, the frontend survives, and streams of other cores are exact."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from frontend.call.serving_state import ServingState
from frontend.engine.client import EngineClient
from frontend.engine.core import Routing
from frontend.engine.core_list import GivenAddresses
from frontend.engine.socket import Listener, Socket
from frontend.errors import EngineRefused, ServiceError, to_status
from frontend.streams.stream import Stream
from pagewire.internal.v1.engine_pb2 import AddRequest, EngineMessage, FrontendMessage, StepOutputs, Welcome
from pagewire.ipc.columns import pack_u8, pack_u32, pack_u64
from pagewire.ipc.transport import pack, unpack
from tests.frontend.streams.test_stream import make_stream
from tests.hostile.bus_messages import ODD_NUMBERS, bombs, column
from tests.hostile.messages import any_message, damage
from tests.hostile.test_bus import SETS
from tests.patience import soon

EPOCH = 5
NUM_TOKENS = 12
MAX_TOKENS = 6  # of FinishReason, any that is not 0 will do
REASONS = ("", "FRONTEND_LOST", "QUEUE_FULL", "REQUEST_ABORTED", "\x00", "x" * 300)
COLUMNS = [each.name for each in StepOutputs.DESCRIPTOR.fields if each.type == each.TYPE_BYTES]


class Wire:
    """The socket of one core: keeps what was sent to the core, and delivers its messages."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.requests: list[AddRequest] = []

    def open(self) -> None:
        """Does nothing: the test connects it at once."""

    def send(self, frame: bytes) -> bool:
        message = FrontendMessage.FromString(unpack(frame))
        if message.HasField("add_request"):
            self.requests.append(message.add_request)
        return True

    def close(self) -> None:
        """Nothing is open."""

    def say(self, **fields: object) -> None:
        self.listener.on_frame(pack(EngineMessage(**fields)))  # type: ignore[arg-type]


def welcome(**changes: object) -> Welcome:
    message = Welcome(epoch=EPOCH, instance_id="x", block_size=4, num_blocks=64, max_num_seqs=8)
    message.model.vocab_size, message.model.max_model_len = 512, 200
    message.MergeFrom(Welcome(**changes))  # type: ignore[arg-type]
    return message


def token_at(request: AddRequest, index: int, position: int) -> int:
    """Returns the messages of an honest core."""
    return 10 + (len(request.request_id) * 31 + index * 7 + position * 13) % 250


class HonestCore:
    """One token of each sequence in each step; of requests that are its own from the beginning."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._positions: dict[tuple[int, int], int] = {}

    def step(self) -> None:
        for request in [each for each in self.wire.requests if each.request_id.startswith("r")]:
            for index in range(request.sampling.n):
                key = request.handle, index
                position = self._positions.get(key, 0)
                if position == NUM_TOKENS:
                    continue
                self._positions[key] = position + 1
                tokens, ends = [token_at(request, index, position)], position + 1 == NUM_TOKENS
                outputs = one_output(request.handle, index, position, tokens, ends)
                self.wire.say(step_outputs=outputs)


def one_output(handle: int, index: int, position: int, tokens: list[int], ends: bool) -> StepOutputs:
    return StepOutputs(
        epoch=EPOCH,
        handles=pack_u64([handle]),
        indexes=pack_u32([index]),
        positions=pack_u32([position]),
        counts=pack_u32([len(tokens)]),
        token_ids=pack_u32(tokens),
        finish_reasons=pack_u8([MAX_TOKENS * ends]),
        finish_token_ids=pack_u32([0]),
    )


def lies(wire: Wire, draw: random.Random) -> Iterator[bytes]:
    """Yields arbitrary frames of a core, about its requests and about others."""
    pickles = bombs("/nonexistent/marker")
    while True:
        handles = [request.handle for request in wire.requests[-20:]] + [0, 2**64 - 1]
        kind = draw.randrange(6)
        message = any_message(EngineMessage.DESCRIPTOR, draw)
        assert isinstance(message, EngineMessage)
        message.ClearField("leaving")  # no request comes after it: tests/frontend/engine/test_leaving.py
        if kind < 3:
            tokens = draw.choices(ODD_NUMBERS, k=draw.choice((0, 1, 2, 40)))
            outputs = message.step_outputs
            outputs.MergeFrom(
                one_output(
                    draw.choice(handles),
                    draw.choice((0, 0, 1, 2**32 - 1)),
                    draw.choice((0, 0, 1, 2, 40, 2**32 - 1)),
                    tokens,
                    draw.random() < 0.1,
                )
            )
            for _ in range(draw.choice((0, 1, 1, 3))):
                setattr(outputs, draw.choice(COLUMNS), column(draw))
            if draw.random() < 0.5:
                outputs.ClearField("has_logprobs")
            for part in outputs.prompt_logprobs:
                part.handle = draw.choice(handles)
        elif kind == 3:
            message.request_failed.handle = draw.choice(handles)
            if draw.random() < 0.8:  # ENGINE_DEAD would end all that it has, again and again
                message.request_failed.reason = draw.choice(
                    ("", "FRONTEND_LOST", "QUEUE_FULL", "\x00", "x" * 300)
                )
        elif kind == 4:
            yield draw.choice((draw.choice(pickles), draw.randbytes(30), b"", damage(pack(message), draw)))
            continue
        for name in ("step_outputs", "request_failed", "welcome"):
            part = getattr(message, name)
            if message.HasField(name) and draw.random() < 0.9:  # type: ignore[arg-type]
                part.epoch = EPOCH
        yield pack(message)


async def read(stream: Stream) -> dict[int, list[int]]:
    """What a client gets: token ids by sequence, in order. A failure must be one that can be told."""
    found: dict[int, list[int]] = {}
    try:
        while (message := await stream.take()) is not None:
            for output in message.sequences:
                tokens = found.setdefault(output.index, [])
                assert output.position == len(tokens), "a gap, or a token twice"
                tokens += output.token_ids
            message.SerializeToString()
    except ServiceError as error:
        to_status(error).SerializeToString()
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_a_core_that_sends_anything(seed: int) -> None:
    draw = random.Random(seed)
    wires: list[Wire] = []

    def make_socket(address: str, identity: bytes, listener: Listener) -> Socket:
        wires.append(Wire(listener))
        return wires[-1]

    client = EngineClient(
        GivenAddresses(["ipc:///a", "ipc:///b"]), ServingState(), 60.0, make_socket, random.Random(seed)
    )
    client.start()
    hostile, honest = wires[0], HonestCore(wires[1])
    for wire in wires:
        wire.listener.on_connected()
        wire.say(welcome=welcome())
    exact: list[tuple[AddRequest, asyncio.Task[dict[int, list[int]]]]] = []
    others: list[asyncio.Task[dict[int, list[int]]]] = []
    stream_of = lies(hostile, draw)
    for number in range(SETS):
        if number % 200 == 0:
            stream = make_stream(2, token_ids=True)
            request = AddRequest(request_id="r" * (number // 200 + 1), sampling={"n": 2})
            client.submit(request, stream, Routing(rank=1))
            exact.append((request, asyncio.create_task(read(stream))))
        if number % 10 == 0 and client.cores[0].serves:
            stops = draw.choice(((), ("the", "\ufffd")))
            stream = make_stream(2, stops=stops, token_ids=True, logprobs=draw.random() < 0.3)
            request = AddRequest(request_id=f"h{number}", sampling={"n": 2}, prompt_token_ids=pack_u32([5]))
            client.submit(request, stream, Routing(rank=0))
            others.append(asyncio.create_task(read(stream)))
        hostile.listener.on_frame(next(stream_of))
        if not client.cores[0].serves:  # as it has been lost, or was another model for a moment
            hostile.say(welcome=welcome(epoch=EPOCH))
        if number % 10 == 0:
            honest.step()
            await asyncio.sleep(0)
    for _ in range(NUM_TOKENS):
        honest.step()
        await asyncio.sleep(0)
    for request, task in exact:
        expected = {i: [token_at(request, i, p) for p in range(NUM_TOKENS)] for i in range(2)}
        assert await soon(task) == expected
    assert client.cores[0].protocol_errors > SETS / 10 and client.cores[1].protocol_errors == 0
    assert len(others) > 10
    await client.close()
    await soon(asyncio.gather(*others))
    assert len(client.journal) == 0 and client.journal.num_bytes == 0
    assert not any(core.in_flight for core in client.cores)


@pytest.mark.parametrize("seconds", [-1e300, -1.0, 1e10, 1e300])
def test_an_absurd_retry_delay(seconds: float) -> None:
    """It is told all the same, as one that does."""
    error = EngineRefused(14, "QUEUE_FULL", "later", retry_after=seconds)
    assert to_status(error).SerializeToString()
