"""Measures what gRPC alone costs: streams of small messages between two processes.

    python -m benchmarks.grpc_floor
    python -m benchmarks.grpc_floor --streams 32 --pause-ms 30 --messages 60
    python -m benchmarks.grpc_floor --client threads --server-env GRPC_EXPERIMENTS=-event_engine_listener

A server writes a message to each of its streams, waits, and writes the next one, as a frontend does whose
model takes a step meanwhile; a client reads them as bytes. No service over grpc.aio pays less per message.
The pause matters: who sleeps between two messages comes back to cold caches; --busy has other processes go
through memory meanwhile, as the model's weights do. Prints microseconds of processor time per message, of all
threads of each process, and how often they are woken: medians (least..greatest).
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.processes import processor_seconds, wake_ups

METHOD = "/floor.Floor/Stream"
MESSAGE = bytes(20)
SPAWN = multiprocessing.get_context("spawn")


class Ticks:
    """Wakes all streams at once, as the outputs of a step do."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._waiting: list[asyncio.Future[None]] = []

    def next(self) -> asyncio.Future[None]:
        """Done with the next tick."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    async def run(self) -> None:
        """Ticks until it is cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.cancelled():
                    future.set_result(None)


async def serve(pipe: Connection, pause: float, messages: int) -> None:
    """Until it is killed."""
    import grpc

    ticks = Ticks(pause)

    async def stream(_: bytes, context: Any) -> None:
        for _ in range(messages):
            await ticks.next()
            await context.write(MESSAGE)

    _, service, method = METHOD.split("/")
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await ticks.run()


def server_process(pipe: Connection, loop: str, pause: float, messages: int) -> None:
    """The server's process; a frontend is on uvloop."""
    import uvloop

    run = uvloop.run if loop == "uvloop" else asyncio.run
    run(serve(pipe, pause, messages))


async def read_aio(pipe: Connection, address: str, streams: int) -> None:
    """Reads all streams, whenever it is told to."""
    import grpc

    async def read() -> None:
        call = channel.unary_stream(METHOD)(b"")
        while await call.read() is not grpc.aio.EOF:
            pass

    async with grpc.aio.insecure_channel(address) as channel:
        while await asyncio.to_thread(pipe.recv):
            await asyncio.gather(*(read() for _ in range(streams)))
            pipe.send(None)


def read_sync(pipe: Connection, address: str, streams: int, options: list[tuple[str, int]]) -> None:
    """The same, with a thread for each stream. options: of the channel."""
    import grpc

    def read() -> None:
        for _ in channel.unary_stream(METHOD)(b""):
            pass

    with grpc.insecure_channel(address, options=options) as channel, ThreadPoolExecutor(streams) as threads:
        while pipe.recv():
            for read_to_end in [threads.submit(read) for _ in range(streams)]:
                read_to_end.result()
            pipe.send(None)


def client_process(pipe: Connection, kind: str, address: str, streams: int) -> None:
    """The client's process."""
    import grpc.experimental
    import uvloop

    if kind in ("aio", "uvloop"):
        run = uvloop.run if kind == "uvloop" else asyncio.run
        run(read_aio(pipe, address, streams))
    else:
        single = [(grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)] if kind == "single" else []
        read_sync(pipe, address, streams, single)


def busy_process() -> None:
    """Goes through more memory than caches hold."""
    memory = bytearray(64 << 20)
    while True:
        memory.count(b"\1")


def start(
    target: Callable[..., None], *arguments: Any, environment: list[str]
) -> tuple[BaseProcess, Connection]:
    """A process, and the pipe to it. environment: NAME=VALUE, for its grpc, which is imported there."""
    ours, theirs = multiprocessing.Pipe()
    before = dict(os.environ)
    os.environ.update(each.split("=", 1) for each in environment)
    process = SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    os.environ.clear()
    os.environ.update(before)
    return process, ours


def measure(
    client: Connection, processes: dict[str, int], count: int, repeats: int
) -> dict[str, list[tuple[float, float]]]:
    """(microseconds, wake-ups) per message of each run, after one that does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
    for run in range(repeats + 1):
        before = {name: (processor_seconds(pid), wake_ups(pid)) for name, pid in processes.items()}
        client.send(True)
        client.recv()
        for name, pid in processes.items():
            seconds, woken = before[name]
            used = 1e6 * (processor_seconds(pid) - seconds) / count, (wake_ups(pid) - woken) / count
            found[name] += [used] if run else []
    return found


def arguments() -> argparse.Namespace:
    """As in the docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--pause-ms", type=float, default=6.5, help="between messages; default: %(default)s")
    parser.add_argument("--messages", type=int, default=400, help="of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0, help="processes that go through memory meanwhile")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="the server's")
    parser.add_argument(
        "--client",
        choices=("aio", "uvloop", "threads", "single"),
        default="aio",
        help="grpc.aio on asyncio or uvloop; grpc's own threads, or SingleThreadedUnaryStream",
    )
    for name in ("server", "client"):
        parser.add_argument(f"--{name}-env", metavar="NAME=VALUE", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Runs, prints."""
    options = arguments()
    pause, messages, streams = options.pause_ms / 1000, options.messages, options.streams
    server, pipe = start(server_process, options.loop, pause, messages, environment=options.server_env)
    address = f"127.0.0.1:{pipe.recv()}"
    client, pipe = start(client_process, options.client, address, streams, environment=options.client_env)
    busy = [SPAWN.Process(target=busy_process, daemon=True) for _ in range(options.busy)]
    for process in busy:
        process.start()
    assert server.pid is not None and client.pid is not None
    processes = {"server": server.pid, "client": client.pid}
    for name, runs in measure(pipe, processes, messages * streams, options.repeats).items():
        costs = sorted(us for us, _ in runs)
        woken = statistics.median(wakes for _, wakes in runs)
        spread = f"{costs[0]:.0f}..{costs[-1]:.0f}"
        print(f"{name}: {statistics.median(costs):.0f} us ({spread}) and {woken:.1f} wake-ups per message")
    for process in (server, client, *busy):
        process.kill()


if __name__ == "__main__":
    main()
