"""Measures what the HTTP door costs a frontend per token, beside gRPC.

    PYTHONPATH=. python -m benchmarks.doors
    PYTHONPATH=. python -m benchmarks.doors --streams 128 --repeats 9 --doors grpc,chat

A service on the simulated device, one frontend, and streams of equal requests: through gRPC, /v1/completions,
/v1/chat/completions and /v1/responses in turn, in every repetition. The clients of HTTP read raw bytes and
count events. Printed are microseconds of the frontend's processor time per token, over whole requests with
their admission, tokens per message, and the ratio to gRPC of the same repetition: medians (least..greatest).
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from urllib.parse import urlsplit

from benchmarks.processes import by_role, processor_seconds
from pagewire import AsyncClient, SamplingParams
from pagewire.config import ServeConfig
from pagewire.local_service import Service

PROMPT = "Once upon a time"
PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
DELTAS = {
    "completions": b'"text_completion"',
    "chat": b'{"content":',
    "responses": b"event: response.output_text.delta",
}
"""What each event with text has once."""

Run = Callable[[], Awaitable[int]]
"""Runs one stream; returns the number of its messages."""


async def over_grpc(client: AsyncClient, tokens: int) -> int:
    """A stream over gRPC."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    messages = 0
    async with client.stream(PROMPT, params) as stream:
        async for _ in stream:
            messages += 1
    return messages


async def over_http(url: str, door: str, tokens: int) -> int:
    """A stream over HTTP, on a connection of its own."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps(body_of(door, tokens)).encode()
    writer.write(
        f"POST {PATHS[door]} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    received = await reader.read()
    writer.close()
    if not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received.decode())
    return received.count(DELTAS[door])


def body_of(door: str, tokens: int) -> dict[str, object]:
    """The request of over_grpc() in a door's fields."""
    shared: dict[str, object] = {"model": "demo", "stream": True, "temperature": 0, "ignore_eos": True}
    match door:
        case "completions":
            return {**shared, "prompt": PROMPT, "max_tokens": tokens}
        case "chat":
            return {**shared, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens}
        case _:
            return {**shared, "input": PROMPT, "max_output_tokens": tokens}


async def measure(
    runs: dict[str, Run], pid: int, options: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """Microseconds per token, and tokens per message, of each door and repetition but the first."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    total = options.streams * options.tokens
    for repetition in range(options.repeats + 1):
        for name, run in runs.items():
            before = processor_seconds(pid)
            messages = sum(await asyncio.gather(*(run() for _ in range(options.streams))))
            cost = 1e6 * (processor_seconds(pid) - before) / total
            if repetition:
                figures[name].append((cost, total / messages))
    return figures


def show(values: list[float], digits: int) -> str:
    """A median and its range."""
    low, middle, high = (
        f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low}..{high})"


async def compare(service: Service, options: argparse.Namespace) -> None:
    """Measures and prints."""
    (pid,) = by_role(service.pid)["frontend"]
    async with AsyncClient(service.address) as client:
        await client.wait_ready()
        runs: dict[str, Run] = {}
        for door in options.doors.split(","):
            if door == "grpc":
                runs[door] = partial(over_grpc, client, options.tokens)
            else:
                runs[door] = partial(over_http, service.facts["openai"], door, options.tokens)
        figures = await measure(runs, pid, options)
    base = [cost for cost, _ in figures[next(iter(runs))]]
    print(f"{'door':<12}{'us per token':>24}{'tokens per message':>24}{'ratio':>24}")
    for name, pairs in figures.items():
        costs, merged = [cost for cost, _ in pairs], [tokens for _, tokens in pairs]
        ratios = [cost / of_base for cost, of_base in zip(costs, base, strict=True)]
        print(f"{name:<12}{show(costs, 1):>24}{show(merged, 2):>24}{show(ratios, 2):>24}")


def main() -> None:
    """Starts a service, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256, help="of each stream")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", default="cpu", help="of the simulated device")
    parser.add_argument(
        "--doors", default="grpc,completions,chat,responses", help="the first one is compared to"
    )
    options = parser.parse_args()
    config = ServeConfig(
        model="demo", port=0, openai_port=0, device="simulated", profile=options.profile, log_level="error"
    )
    with Service(config) as service:
        asyncio.run(compare(service, options))


if __name__ == "__main__":
    main()
