"""Rolling restarts under load: frontends are restarted one after another while clients call, and every call
that does not end well is counted.

The plain clients are gRPC's own: they retry nothing and continue nothing, and their streams are shorter than
the grace, unless the machine is too busy: one that took longer is not at fault. Ours has streams that outlast
the grace.
"""

import asyncio
import collections
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import grpc

from pagewire import AsyncClient, SamplingParams
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from pagewire_client.errors import RpcError
from tests.e2e.topology import Topology

FLAGS = {"drain_delay": 0.5, "shutdown_grace": 1}
ENGINE = {"profile": "cpu", "worker_fault": "slow-factor=4"}
"""About 2 ms per token."""
NUM_PLAIN, NUM_OURS = 12, 3
SHORT, LONG = 40, 1000
"""Tokens of a stream: much less, and more, than fit into the grace."""
PAUSE_S = 1
"""Between a frontend that is ready and the end of the next one: clients have to find it again."""
ROUND_ROBIN = '{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}}'


@dataclass
class Tally:
    """How calls ended."""

    restarts: int = 0
    exit_codes: collections.Counter[int] = field(default_factory=collections.Counter)
    calls: collections.Counter[str] = field(default_factory=collections.Counter)
    continued: int = 0
    """Streams of our client on more than one frontend."""
    outlasted: int = 0
    """Plain streams that took longer than the grace, and were ended."""
    failures: collections.Counter[str] = field(default_factory=collections.Counter)

    def __str__(self) -> str:
        causes = "".join(f"\n  {number} x {cause}" for cause, number in self.failures.items())
        return (
            f"{self.restarts} restarts, exit codes {dict(self.exit_codes)}; {self.calls['plain']} plain calls"
            f" and {self.calls['ours']} of our client, of which {self.continued} went on at another frontend:"
            f" {self.outlasted} outlasted the grace, {sum(self.failures.values())} failed{causes}"
        )


@contextlib.asynccontextmanager
async def plain_channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """gRPC's channel, without a retry policy. Several addresses: round robin."""
    options: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
    options.append(("grpc.enable_http_proxy", 0))
    # By default gRPC waits for 1 s, 1.6 s and so on up to two minutes before it looks for a server again.
    options.append(("grpc.initial_reconnect_backoff_ms", 100))
    options.append(("grpc.max_reconnect_backoff_ms", PAUSE_S * 500))
    if "," in target:
        options.append(("grpc.service_config", ROUND_ROBIN))
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield channel


async def call_plainly(channel: grpc.aio.Channel, number: int) -> None:
    """One stream of SHORT tokens. Raises AioRpcError, and AssertionError where tokens are missing."""
    request = generation_pb2.GenerateRequest()
    request.prompt.token_ids.ids.extend([5 + number % 7, 9])
    request.stopping.max_tokens, request.stopping.ignore_eos = SHORT, True
    request.output.token_ids = True
    received = 0
    async for message in generation_pb2_grpc.GenerationServiceStub(channel).Generate(request):
        received += sum(len(sequence.token_ids) for sequence in message.sequences)
    assert received == SHORT, f"{received} tokens of {SHORT}"


async def call_ours(client: AsyncClient, tally: Tally, number: int) -> None:
    """One stream of LONG tokens. Raises RpcError, and AssertionError where tokens are missing."""
    params = SamplingParams(max_tokens=LONG, ignore_eos=True, seed=number)
    received = 0
    async with client.stream([5 + number % 7, 9], params) as stream:
        first = stream._call
        async for delta in stream:
            assert delta.position == received, "a gap"
            received += len(delta.token_ids)
        tally.continued += stream._call is not first
    assert received == LONG, f"{received} tokens of {LONG}"


async def restart_under_load(
    service: Topology, plain: list[str], ours: list[str | list[str]], restarts: int
) -> Tally:
    """plain, ours: for each client where it calls. restarts: of frontends, in turn."""
    tally, over, dice = Tally(), asyncio.Event(), random.Random(restarts)
    clock = asyncio.get_running_loop().time

    async def keep_calling(kind: str, call: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while not over.is_set():
            number += 1
            tally.calls[kind] += 1
            began = clock()
            try:
                await call(number)
            except (grpc.aio.AioRpcError, RpcError, AssertionError) as error:
                if (
                    kind == "plain"
                    and "going away" in str(error)
                    and clock() - began > FLAGS["shutdown_grace"]
                ):
                    tally.outlasted += 1
                else:
                    tally.failures[f"{kind}: {describe(error)}"] += 1
            await asyncio.sleep(dice.uniform(0, 0.1))

    async with contextlib.AsyncExitStack() as stack:
        calls: list[tuple[str, Callable[[int], Awaitable[None]]]] = []
        for target in plain:
            channel = await stack.enter_async_context(plain_channel(target))
            calls.append(("plain", partial(call_plainly, channel)))
        for addresses in ours:
            client = await stack.enter_async_context(AsyncClient(addresses))
            calls.append(("ours", partial(call_ours, client, tally)))
        tasks = [asyncio.create_task(keep_calling(kind, call)) for kind, call in calls]
        try:
            for number in range(restarts):
                place = number % len(service.ports)
                tally.exit_codes[await asyncio.to_thread(service.restart_frontend, place)] += 1
                tally.restarts += 1
                await asyncio.sleep(PAUSE_S)
        finally:
            over.set()
            await asyncio.gather(*tasks)
    return tally


def describe(error: Exception) -> str:
    """Code and message."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


async def behind_nginx(service: Topology, restarts: int) -> Tally:
    """Every client knows one address, the balancer's, which is running."""
    there = service.address
    return await restart_under_load(service, [there] * NUM_PLAIN, [there] * NUM_OURS, restarts)


async def round_robin(service: Topology, restarts: int) -> Tally:
    """Every client knows all frontends; the plain ones look at health."""
    every = "ipv4:" + ",".join(service.addresses)
    return await restart_under_load(service, [every] * NUM_PLAIN, [service.addresses] * NUM_OURS, restarts)
