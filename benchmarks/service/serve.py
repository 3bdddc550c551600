"""Drives a service with fixed workloads: time to first token, inter-token latency, tokens/s.

    python -m benchmarks.service.serve --address 127.0.0.1:50051
    python -m benchmarks.service.serve --start demo --json figures.json
    python -m benchmarks.service.serve --start /models/m --workloads single,batch -- --max-num-seqs 64
    python -m benchmarks.service.serve --start /models/m --workloads batch --breakdown
    python -m benchmarks.service.serve --start /models/m --workloads first --repeats 20 --breakdown
    python -m benchmarks.service.serve --start /models/m --breakdown -- --device simulated --profile cpu
    python -m benchmarks.service.serve --start /models/m --workloads batch --multiplexed --breakdown

Every figure is the median of the repetitions, with the least and the greatest behind it. A workload
runs once before it counts. The client shares the machine with the service. --breakdown says where the time
goes (benchmarks/service/breakdown.py). --multiplexed has all requests of a workload over one stream, instead
of a stream for each.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.options import make_parser, split_at_dashes
from benchmarks.service.breakdown import Breakdown, Meter, between, print_breakdowns
from pagewire import AsyncClient, SamplingParams, __version__, flags
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire_bench.figures import percentile
from pagewire_bench.trace import Trace
from pagewire_bench.workloads import ALL, WORKLOADS, Request


@dataclass
class Figures:
    """Of one repetition; times in milliseconds."""

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    tokens_per_s: float
    tokens_per_message: float
    seconds: float


async def run_request(client: AsyncClient, request: Request, start: float, **options: Any) -> Trace:
    """Sends a request and times its messages. options: of AsyncClient.stream()."""
    trace = Trace(due=time.perf_counter() - start)
    async with client.stream(request.prompt, params_of(request), **options) as stream:
        async for delta in stream:
            if delta.token_ids:
                trace.arrivals.append((time.perf_counter() - start, len(delta.token_ids)))
    return trace


async def run_multiplexed(
    client: AsyncClient, requests: Sequence[Request], start: float, **options: Any
) -> list[Trace]:
    """The same of all of them, over one stream."""
    async with client.multiplex() as many:
        traces = {
            many.send(request.prompt, params_of(request), **options): Trace(due=time.perf_counter() - start)
            for request in requests
        }
        async for request, delta in many:
            if delta is None:
                raise RuntimeError(f"a request failed: {request.error}")
            if delta.token_ids:
                traces[request].arrivals.append((time.perf_counter() - start, len(delta.token_ids)))
    return list(traces.values())


async def send_all(
    client: AsyncClient,
    requests: Sequence[Request],
    start: float = 0.0,
    multiplexed: bool = False,
    **options: Any,
) -> list[Trace]:
    """All requests at once. Times are seconds since `start` of the clock perf_counter()."""
    if multiplexed:
        return await run_multiplexed(client, requests, start, **options)
    return await asyncio.gather(*(run_request(client, request, start, **options) for request in requests))


def params_of(request: Request) -> SamplingParams:
    """Greedily, past any end."""
    return SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True, text=False)


async def run_once(client: AsyncClient, requests: Sequence[Request], **options: Any) -> Figures:
    """All requests at once. Raises RuntimeError unless all tokens came."""
    start = time.perf_counter()
    traces = await send_all(client, requests, start, **options)
    seconds = time.perf_counter() - start
    for request, trace in zip(requests, traces, strict=True):
        if (tokens := sum(count for _, count in trace.arrivals)) != request.output:
            raise RuntimeError(f"asked for {request.output} tokens, got {tokens}")
    first = [1000 * trace.first for trace in traces]
    gaps = [1000 * gap for trace in traces for gap in trace.gaps()] or [0.0]
    tokens = sum(request.output for request in requests)
    return Figures(
        percentile(first, 50),
        percentile(first, 99),
        percentile(gaps, 50),
        percentile(gaps, 99),
        tokens / seconds,
        tokens / sum(len(trace.arrivals) for trace in traces),
        seconds,
    )


async def run_workloads(
    address: str, names: Sequence[str], first: int, repeats: int, meter: Meter | None, **options: Any
) -> tuple[dict[str, list[Figures]], dict[str, list[Breakdown]], int]:
    """What every repetition gave, by workload, and the model's context length. No meter: no breakdowns.

    first: of the repetitions; a service that has seen one has it in its cache. options: of send_all().
    """
    figures: dict[str, list[Figures]] = {}
    breakdowns: dict[str, list[Breakdown]] = {}
    async with AsyncClient(address) as client:
        await client.wait_ready()
        model = await client.model()
        for name in names:
            runs, parts = [], []
            for repetition in range(first, first + repeats + 1):
                requests = ALL[name].requests(repetition, model.vocab_size, model.max_model_len)
                before = meter and meter.read()
                runs.append(await run_once(client, requests, **options))
                if meter and before:
                    tokens = sum(request.output for request in requests)
                    parts.append(between(before, meter.read(), runs[-1].seconds, tokens))
            figures[name], breakdowns[name] = runs[1:], parts[1:]
    return figures, breakdowns, model.max_model_len


COLUMNS = {
    "ttft_p50": "TTFT p50 ms",
    "ttft_p99": "TTFT p99 ms",
    "itl_p50": "ITL p50 ms",
    "itl_p99": "ITL p99 ms",
    "tokens_per_s": "tokens/s",
    "tokens_per_message": "tokens/message",
}


def summarize(runs: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Median, least and greatest of every figure."""
    summary = {}
    for name in asdict(runs[0]):
        values = [getattr(run, name) for run in runs]
        summary[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return summary


def print_table(summaries: dict[str, dict[str, dict[str, float]]], max_model_len: int) -> None:
    """One line per workload, then what the workloads are."""
    print(f"{'workload':<9}" + "".join(f" {title:>24}" for title in COLUMNS.values()))
    for name, summary in summaries.items():
        cells = (summary[column] for column in COLUMNS)
        texts = (f"{cell['median']:.1f} ({cell['min']:.1f}..{cell['max']:.1f})" for cell in cells)
        print(f"{name:<9}" + "".join(f" {text:>24}" for text in texts))
    for name in summaries:
        factor = ALL[name].factor(max_model_len)
        print(f"  {name}: {ALL[name].about}" + (f", all times {factor:.2f}" if factor < 1 else ""))
    if {"single", "batch"} <= summaries.keys():
        one, many = (summaries[name]["tokens_per_s"]["median"] for name in ("single", "batch"))
        print(f"32 at once give {many / one:.1f} times the tokens/s of one")


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Ours, and those of `pagewire serve`, which follow `--`."""
    ours, theirs = split_at_dashes()
    parser = make_parser(__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--address", help="of a running service")
    where.add_argument("--start", metavar="MODEL", help="start a service for this model")
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), help="also: crowd, few, first, heavy; %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--breakdown", action="store_true", help="where the time goes; with --start")
    parser.add_argument("--multiplexed", action="store_true", help="all requests over one stream")
    parser.add_argument("--stream-interval", type=int, metavar="TOKENS", help="that a message has at least")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    options = parser.parse_args(ours)
    if options.breakdown and not options.start:
        parser.error("--breakdown needs --start: it looks at the processes of the service")
    return options, theirs


def main() -> None:
    """Runs, prints, writes."""
    options, serve_flags = arguments()
    names, how = options.workloads.split(","), {"multiplexed": options.multiplexed}
    if options.stream_interval:
        how["stream_interval"] = options.stream_interval
    with contextlib.ExitStack() as stack:
        address, meter, first = options.address, None, time.time_ns()
        if options.start:
            given = ["--port=0", "--http-port=0", "--log-level=warning", options.start, *serve_flags]
            service = Service(flags.parse(ServeConfig, given, command="serve"))
            address, first = stack.enter_context(service).address, 0
            if options.breakdown:
                meter = Meter(service.facts["http"], service.pid)
        figures, breakdowns, max_model_len = asyncio.run(
            run_workloads(address, names, first, options.repeats, meter, **how)
        )
    summaries = {name: summarize(runs) for name, runs in figures.items()}
    print_table(summaries, max_model_len)
    if options.breakdown:
        print_breakdowns(breakdowns)
    if options.json:
        content: dict[str, Any] = {"version": __version__, "command": sys.argv, "workloads": summaries}
        content["runs"] = {name: [asdict(run) for run in runs] for name, runs in figures.items()}
        content["breakdowns"] = {name: [asdict(part) for part in parts] for name, parts in breakdowns.items()}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
