"""Measures an open-loop load: clients arrive at their own times, however busy the service is.

Arrivals are Poisson with times that are fixed before: a request that is sent late because the generator was
busy counts from its own time, and one that was sent later than SPOILED_S is left out of all figures of time.
Honest clients come back when they were told to; others at once, after a twentieth of a second.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from pagewire.v1 import generation_pb2
from pagewire_bench.load import due_times

SPOILED_S = 0.02
IMPATIENT_S = 0.05
CHANNELS = 8
GENERATE = "/pagewire.v1.GenerationService/Generate"


@dataclass(slots=True)
class Client:
    """One arrival. Times are seconds on time.perf_counter()."""

    at: float  # when it was to come
    honest: bool
    lag: float = 0.0  # of the generator
    refusals: list[float] = field(default_factory=list)  # how long each took
    hints: list[float] = field(default_factory=list)
    num_early: int = 0  # refusals that had a header before them, or no hint
    sent: float = 0.0  # the attempt that was taken
    first: float | None = None  # its first token
    done: float | None = None
    tokens: int = 0

    @property
    def wait(self) -> float:
        """From the attempt that was taken to the first token. It was."""
        assert self.first is not None
        return self.first - self.sent

    @property
    def waited(self) -> float:
        """From the first refusal to the attempt that was taken."""
        return self.sent - self.at - self.refusals[0]


@dataclass(frozen=True)
class Kind:
    """A kind of request, and how often it arrives."""

    prompt_tokens: int
    output_tokens: int
    attempts: int
    patience: float  # seconds after which a rejected request is given up

    def request(self, number: int) -> bytes:
        """Token ids in and out, past EOS; no two prompts have a block in common."""
        ids = [3 + (number * 7919 + place) % 900 for place in range(self.prompt_tokens)]
        request = generation_pb2.GenerateRequest()
        request.prompt.token_ids.ids.extend(ids)
        request.sampling.temperature = 0
        request.sampling.seed = number
        request.stopping.max_tokens = self.output_tokens
        request.stopping.ignore_eos = True
        request.output.text = False
        request.output.token_ids = True
        request.cache.bypass = True
        return request.SerializeToString()


class Crowd:
    """All clients of a run, over a few connections."""

    def __init__(self, channels: list[grpc.aio.Channel], kind: Kind, dishonest: float, seed: int) -> None:
        """dishonest: the part of clients that ignore what they are told."""
        self.clients: list[Client] = []
        self._calls = [channel.unary_stream(GENERATE) for channel in channels]
        self._kind = kind
        self._dishonest = dishonest
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def arrive(self, per_second: float, seconds: float) -> None:
        """So many per second, for so long."""
        start = time.perf_counter()
        end = start + seconds
        for due in due_times(per_second, self._random):
            at = start + due
            if at > end:
                await asyncio.sleep(max(end - time.perf_counter(), 0))
                return
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            client = Client(at, self._random.random() >= self._dishonest)
            self.clients.append(client)
            task = asyncio.create_task(self._live(client, len(self.clients)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def leave(self) -> None:
        """Ends all arrivals."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self, client: Client, number: int) -> None:
        request, call = self._kind.request(number), self._calls[number % len(self._calls)]
        client.lag = time.perf_counter() - client.at
        for _ in range(self._kind.attempts):
            client.sent = time.perf_counter()
            pause = await self._try(client, call(request))
            if pause is None or time.perf_counter() + pause > client.at + self._kind.patience:
                return
            await asyncio.sleep(pause)

    async def _try(self, client: Client, call: grpc.aio.UnaryStreamCall) -> float | None:
        """Seconds until the client comes again; None: it has what it wanted."""
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if client.first is None:
                    client.first = time.perf_counter()
            client.done = time.perf_counter()
            last = generation_pb2.GenerateResponse.FromString(message if message else b"")
            client.tokens = last.usage.completion_tokens or self._kind.output_tokens
            return None
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            client.refusals.append(time.perf_counter() - client.sent)
            hint = hint_of(error)
            if hint is None or client.first is not None:
                client.num_early += 1
                return IMPATIENT_S
            client.hints.append(hint)
            return hint if client.honest else IMPATIENT_S


def hint_of(error: grpc.aio.AioRpcError) -> float | None:
    """Seconds of RetryInfo."""
    status = rpc_status.from_call(error)
    retry = error_details_pb2.RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(retry):
            return retry.retry_delay.ToTimedelta().total_seconds()
    return None


@contextlib.asynccontextmanager
async def crowd(address: str, kind: Kind, dishonest: float = 0.0, seed: int = 0) -> AsyncIterator[Crowd]:
    """Clients of one service. They are gone after the block."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(CHANNELS)
        ]
        people = Crowd(channels, kind, dishonest, seed)
        try:
            yield people
        finally:
            await people.leave()
