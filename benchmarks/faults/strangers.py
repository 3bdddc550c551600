"""What a tenant keeps of its calls while clients without a token flood one method.

    python -m benchmarks.faults.strangers
    python -m benchmarks.faults.strangers --seconds 5 --strangers 2 --methods Health/Watch --floods resets

The simulated device, one frontend. The tenant keeps eight calls of the method going, from a process of its
own, once its token has been accepted. Each stranger is a process with a connection from an address of its
own: "calls" sends calls as fast as they are answered, 512 at a time, "guesses" sends them with tokens that it
makes up, "resets" sends calls and resets each at once. All processes share the cores: "of cores" relates the
tenant's calls to the core seconds that the strangers leave, and is what the goal is about. An error is bare
if its status has no details.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_status.rpc_status import GRPC_DETAILS_METADATA_KEY
from h2.events import DataReceived
from h2.exceptions import ProtocolError

from benchmarks.service.processes import cpu_seconds
from frontend.auth.tokens import digest_of, entry_line, new_token
from pagewire.config import DEMO_MODEL, ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, model_pb2, tokenizer_pb2
from tests.envoy import running_envoy
from tests.hostile.attacks import floods_of_resets
from tests.hostile.test_frames import Http2, framed

SERVICE = "pagewire.v1."
METHODS: dict[str, bytes] = {
    f"{SERVICE}GenerationService/GenerateUnary": generation_pb2.GenerateRequest(
        prompt={"text": "hi"}, stopping={"max_tokens": 1}
    ).SerializeToString(),
    f"{SERVICE}GenerationService/Generate": generation_pb2.GenerateRequest(
        prompt={"text": "hi"}, stopping={"max_tokens": 1}
    ).SerializeToString(),
    f"{SERVICE}TokenizerService/Tokenize": tokenizer_pb2.TokenizeRequest(
        prompts=[{"text": "hi"}]
    ).SerializeToString(),
    f"{SERVICE}ModelService/ListModels": model_pb2.ListModelsRequest().SerializeToString(),
    "grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest().SerializeToString(),
    "grpc.health.v1.Health/Watch": health_pb2.HealthCheckRequest().SerializeToString(),
}
"""With a request of each. Of Watch the tenant takes the first message."""
CALLS = 8
"""Of the tenant at a time."""
MOST_OPEN = 512
"""Of a stranger on its connection."""
BURST = 64
"""Calls between two looks at what has come."""
TIMEOUT_S = 30.0
GOAL = 0.4
BARE = "bare"
ACCEPTING = f"{SERVICE}ModelService/ListModels"
"""What shows a proxy that a token is accepted: a method that needs one."""


@dataclass
class Kept:
    """What came of the tenant's calls."""

    answered: int
    seconds: float
    slowest: float
    errors: Counter[str]
    """By status; those without a reason begin with BARE."""

    @property
    def rate(self) -> float:
        """Calls that were answered, per second."""
        return self.answered / self.seconds


async def _call(channel: grpc.aio.Channel, method: str, metadata: Sequence[tuple[str, str]]) -> None:
    call = channel.unary_stream(f"/{method}")(
        METHODS[method], metadata=metadata, timeout=TIMEOUT_S, wait_for_ready=True
    )
    if method.endswith("Watch"):
        await call.read()
        call.cancel()
    else:
        async for _ in call:
            pass


async def tenant(address: str, token: str, method: str, seconds: float) -> Kept:
    """Calls for so long; each of those that call at once does so at least once."""
    kept, metadata, began = Kept(0, 0.0, 0.0, Counter()), (("authorization", f"Bearer {token}"),), 0.0

    async def follow(channel: grpc.aio.Channel) -> None:
        now = began
        while now < began + seconds:
            start = time.perf_counter()
            try:
                await _call(channel, method, metadata)
                kept.answered += 1
            except grpc.aio.AioRpcError as error:
                details = {key for key, _ in error.trailing_metadata() or ()}
                bare = "" if GRPC_DETAILS_METADATA_KEY in details else f"{BARE} "
                kept.errors[f"{bare}{error.code().name}: {(error.details() or '')[:60]}"] += 1
            now = time.perf_counter()
            kept.slowest = max(kept.slowest, now - start)

    async with grpc.aio.insecure_channel(address) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await _call(channel, ACCEPTING, metadata)
        began = time.perf_counter()
        await asyncio.gather(*(follow(channel) for _ in range(CALLS)))
    kept.seconds = time.perf_counter() - began
    return kept


def tenant_process(pipe: Connection, address: str, token: str, method: str, seconds: float) -> None:
    """The tenant, and sends what it kept."""
    pipe.send(asyncio.run(tenant(address, token, method, seconds)))


def calls(
    address: str, path: str, body: bytes, stop: threading.Event, guess: bool = False, source: str = ""
) -> None:
    """Calls as fast as they are answered, without a token or, to guess, with another one each."""
    while not stop.is_set():
        with contextlib.suppress(OSError, ProtocolError), Http2(address, source) as http:
            while not stop.is_set():
                for _ in range(min(MOST_OPEN - http.state.open_outbound_streams, BURST)):
                    named = {"authorization": f"Bearer {new_token()}"} if guess else {}
                    http.call(body, _path=path, **named)
                _receive(http)


def _receive(http: Http2) -> None:
    """Takes what has come, and lets as much more come. Raises ConnectionError where it has ended."""
    if not (data := http.socket.recv(1 << 16)):
        raise ConnectionResetError
    for event in http.state.receive_data(data):
        if isinstance(event, DataReceived):
            http.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
    http.flush()


FLOODS: dict[str, Callable[..., None]] = {
    "calls": calls,
    "guesses": partial(calls, guess=True),
    "resets": floods_of_resets,
}


def stranger_process(name: str, number: int, address: str, path: str, body: bytes) -> None:
    """A stranger, until it is killed. number: from 0 on."""
    FLOODS[name](address, path, framed(body), threading.Event(), source=f"127.0.0.{2 + number}")


@dataclass(frozen=True)
class Target:
    """A service, and the tenant's token."""

    address: str
    token: str
    seconds: float  # of each measurement

    def beside(self, flood: str, count: int, method: str) -> tuple[Kept, float]:
        """Returns what the tenant keeps beside so many strangers, and the cores that these take."""
        context = multiprocessing.get_context("fork")
        strangers = [
            context.Process(
                target=stranger_process,
                args=(flood, number, self.address, f"/{method}", METHODS[method]),
                daemon=True,
            )
            for number in range(count)
        ]
        reading, writing = context.Pipe(duplex=False)
        tenant = context.Process(
            target=tenant_process, args=(writing, self.address, self.token, method, self.seconds)
        )
        for process in (*strangers, tenant):
            process.start()
        kept: Kept = reading.recv()
        used = sum(cpu_seconds(process.pid or 0) for process in strangers)
        for process in strangers:
            process.kill()
        for process in (*strangers, tenant):
            process.join()
        return kept, used / kept.seconds


def measure(target: Target, method: str, floods: Sequence[str], count: int) -> bool:
    """Prints a line for each flood. Returns whether the tenant kept enough, and got no bare error."""
    cores, enough = len(os.sched_getaffinity(0)), True
    alone = target.beside("calls", 0, method)[0].rate
    for flood in floods:
        kept, used = target.beside(flood, count, method)
        share = kept.rate / alone
        left = share * cores / max(cores - used, 0.01)
        figures = f"{kept.rate:8.0f} {share:6.2f} {left:10.2f} {kept.slowest:10.2f}"
        print(f"{method.rpartition('.')[2]:32} {flood:7} {figures}  {dict(kept.errors) or ''}", flush=True)
        enough &= left >= GOAL and not any(error.startswith(BARE) for error in kept.errors)
    return enough


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where the tenant kept less than GOAL of what the strangers left, or got a bare error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.strangers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--strangers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", help="ends of their names", default=[""])
    parser.add_argument("--floods", nargs="+", choices=list(FLOODS), default=list(FLOODS))
    parser.add_argument("--envoy", action="store_true", help="all go through deploy/envoy")
    options = parser.parse_args(arguments)
    methods = [method for method in METHODS if method.endswith(tuple(options.methods))]
    token, simulated = new_token(), {"device": "simulated", "profile": "h200", "no_standby": True}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tokens = Path(folder, "tokens.yaml")
        tokens.write_text("tokens:\n" + entry_line(digest_of(token), "alice", {}))
        flags: dict[str, Any] = {**simulated, "auth_file": str(tokens), "log_level": "error"}
        address = stack.enter_context(Service(ServeConfig(model=DEMO_MODEL, port=0, **flags))).address
        if options.envoy:
            backends = [int(address.rpartition(":")[2])] * 2
            address = f"127.0.0.1:{stack.enter_context(running_envoy(Path(folder), backends))}"
        print(f"{'method':32} {'flood':7} {'calls/s':>8} {'kept':>6} {'of cores':>10} {'slowest s':>10}")
        target = Target(address, token, options.seconds)
        enough = [measure(target, method, options.floods, options.strangers) for method in methods]
    return int(not all(enough))


if __name__ == "__main__":
    sys.exit(main())
