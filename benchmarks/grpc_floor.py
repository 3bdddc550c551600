"""What grpc.aio costs by itself: one stream, one small message after another, nothing else.

    python benchmarks/grpc_floor.py
    python benchmarks/grpc_floor.py --pause-ms 10 --messages 1000

A server writes a message, waits, and writes the next one, as a frontend does whose model takes a step
meanwhile; a client reads them as bytes. No service over grpc.aio pays less per message. The pause
matters: who sleeps between two messages comes back to cold caches. Prints microseconds of processor time per
message, of all threads of each process, and how often they are woken.
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import uvloop
from processes import processor_seconds, wake_ups

METHOD = "/floor.Floor/Stream"
MESSAGE = bytes(20)


async def serve(pipe: Connection, pause: float, messages: int) -> None:
    """Until it is killed."""

    async def stream(request: bytes, context: grpc.aio.ServicerContext) -> None:
        for _ in range(messages):
            await asyncio.sleep(pause)
            await context.write(MESSAGE)

    _, service, method = METHOD.split("/")
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


def server_process(pipe: Connection, pause: float, messages: int) -> None:
    """The server's process: on uvloop, as a frontend."""
    uvloop.run(serve(pipe, pause, messages))


async def measure(port: int, server: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(microseconds, wake-ups) per message of each run, after one that does not count."""
    processes = {"server": server, "client": os.getpid()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for run in range(repeats + 1):
            before = {name: (processor_seconds(pid), wake_ups(pid)) for name, pid in processes.items()}
            call, count = channel.unary_stream(METHOD)(b""), 0
            while await call.read() is not grpc.aio.EOF:
                count += 1
            for name, pid in processes.items():
                seconds, woken = before[name]
                used = 1e6 * (processor_seconds(pid) - seconds) / count, (wake_ups(pid) - woken) / count
                found[name] += [used] if run else []
    return found


def main() -> None:
    """Runs, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pause-ms", type=float, default=6.5, help="between messages; default: %(default)s")
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    arguments = theirs, options.pause_ms / 1000, options.messages
    process = spawn.Process(target=server_process, args=arguments, daemon=True)
    process.start()
    assert process.pid is not None
    for name, runs in asyncio.run(measure(ours.recv(), process.pid, options.repeats)).items():
        costs = sorted(us for us, _ in runs)
        woken = statistics.median(wakes for _, wakes in runs)
        spread = f"{costs[0]:.0f}..{costs[-1]:.0f}"
        print(f"{name}: {statistics.median(costs):.0f} us ({spread}) and {woken:.1f} wake-ups per message")
    process.kill()


if __name__ == "__main__":
    main()
