"""The GPU kernels against the memory and the matrix units of the device, and against torch. Needs CUDA.

    python -m benchmarks.gpu.kernels                         # a table, in less than ten minutes
    python -m benchmarks.gpu.kernels --json kernels.json     # the figures too
    python -m benchmarks.gpu.kernels --only decode
    TRITON_INTERPRET=1 python -m benchmarks.gpu.kernels --tiny --only norm   # on a CPU: to try this out

First the ceilings of this device are measured: bytes per second of a large copy, and FLOP per second of a
large matrix product in bfloat16. A kernel's figure is a share of one of them, by the bytes or the FLOP that
its work needs at least. Others do the same work beside it, and the table has the best of them: for
attention torch's SDPA by every backend, FlexAttention, and FlashInfer where it is installed
(benchmarks/gpu/attention_works.py); for the rest torch, compiled for row operations, with sorting samplers.
What a peer cannot do is in the JSON with its words.

Each time is that of a CUDA graph of 20 calls, per call; the median of some replays. Calls take turns on up
to 20 sets of inputs, until they exceed the L2 cache together; small works stay in it, as they do in a model,
and may exceed the ceiling. Inputs are random, never zeros. Shapes: Llama-3-8B, and Qwen2.5-0.5B where its
name stands.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import torch

from benchmarks.gpu.attention_works import attention_works
from benchmarks.gpu.family_works import family_works
from benchmarks.gpu.sampler_works import sampler_works
from benchmarks.gpu.works import Call, Setting, Work, row_works
from benchmarks.options import make_parser

L2_BYTES = 128 << 20
"""That inputs together exceed: the L2 cache of an H200 holds 60 MB."""
CALLS = 20
"""In a graph."""
REPLAYS = 15


def seconds(calls: Sequence[Call]) -> float:
    """Of one call, on the device: calls take turns in a graph. Runs of the graph are timed by events."""
    for call in calls:  # compiles, and what a graph must not contain
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / CALLS)
    return statistics.median(times)


def ceilings(device: torch.device) -> tuple[float, float]:
    """Bytes per second of a copy (read and written), FLOP per second of a product in bfloat16."""
    source = torch.randn(1 << 28, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / seconds([partial(target.copy_, source)])
    del source, target
    size = 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    return bandwidth, 2.0 * size**3 / seconds([partial(torch.mm, a, b, out=c)])


def error(work: Work) -> float | None:
    """The norm of the difference over the norm of torch's result."""
    if not work.compare or work.theirs is None:
        return None
    ours, theirs = work.ours().float(), work.theirs().float()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-30))


def measure(make: Callable[[], Work], bandwidth: float, rate: float) -> dict[str, Any]:
    """A row of the table."""
    first = make()
    copies_needed = 1 + int(L2_BYTES // max(1.0, first.num_bytes)) if first.num_bytes else 1
    turns = [first, *(make() for _ in range(min(CALLS, copies_needed) - 1))]
    ours = seconds([work.ours for work in turns])
    return row_of(first, ours, *time_peers(turns), rate if first.flops else bandwidth)


def row_of(
    work: Work, ours: float, peers: dict[str, float], refusals: dict[str, str], most: float
) -> dict[str, Any]:
    """peers: their seconds. most: per second, of FLOP or bytes."""
    best, amount = min(peers, key=lambda name: peers[name], default=None), work.flops or work.num_bytes
    return {
        "name": work.name,
        "ours_us": 1e6 * ours,
        "peer": best,
        "peer_us": None if best is None else 1e6 * peers[best],
        "peers_us": {name: 1e6 * time_of for name, time_of in peers.items()},
        "refusals": refusals,
        "per_second": amount / ours,
        "unit": "TFLOP/s" if work.flops else "GB/s",
        "share": amount / ours / most,
        "error": error(work),
    }


def time_peers(turns: Sequence[Work]) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds of those that do the work, and why the others do not."""
    times, refusals = {}, {}
    first = turns[0]
    if first.theirs is not None:
        calls = [work.theirs for work in turns if work.theirs is not None]
        times["torch"] = seconds([torch.compile(call) for call in calls[:1]] if first.compiled else calls)
    for name in first.peers:
        try:
            times[name] = seconds([work.peers[name]() for work in turns])
        except Exception as why:  # other people's code, of any kind: our figures stay
            refusals[name] = f"{type(why).__name__}: {why}".splitlines()[0]
    return times, refusals


def try_out(make: Callable[[], Work]) -> dict[str, Any]:
    """A row of the same form, of one call on the host, without peers: no figure of a kernel."""
    work = make()
    began = time.perf_counter()
    work.ours()
    return row_of(work, time.perf_counter() - began, {}, {}, inf)


HEADER = (
    "| work | ours, us | best other, us | ratio | | of the ceiling | error |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def line(row: dict[str, Any]) -> str:
    """Of the table, in Markdown."""
    figure = row["per_second"] / (1e12 if row["unit"] == "TFLOP/s" else 1e9)
    peer = "" if row["peer_us"] is None else f"{row['peer_us']:.1f} {row['peer']}"
    ratio = "" if row["peer_us"] is None else f"{row['peer_us'] / row['ours_us']:.2f}"
    wrong = "" if row["error"] is None else f"{row['error']:.1e}"
    columns = row["name"], f"{row['ours_us']:.1f}", peer, ratio, f"{figure:.0f} {row['unit']}"
    return "| " + " | ".join((*columns, f"{row['share']:.0%}", wrong)) + " |"


def works(setting: Setting) -> list[Callable[[], Work]]:
    """All of them; each makes its inputs when it is called."""
    first = [*attention_works(setting), *row_works(setting), *family_works(setting)]
    return [*first, *sampler_works(setting)]


def choose_setting(tiny: bool) -> Setting:
    """The device and its sizes. Exits where there is none."""
    if tiny:
        if os.environ.get("TRITON_INTERPRET") != "1":
            sys.exit("--tiny is for Triton's interpreter: set TRITON_INTERPRET=1")
        return Setting(torch.device("cpu"), torch.float16, 256)
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: there is nothing to measure here, but for --tiny")
    return Setting(torch.device("cuda"))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--json", help="write the figures there, after each work")
    parser.add_argument("--only", default="", help="works with one of these in their name, such as norm,head")
    parser.add_argument("--seconds", type=float, default=480, help="begin nothing after that long")
    parser.add_argument("--tiny", action="store_true", help="in the interpreter, to try the benchmark itself")
    options = parser.parse_args()
    setting, began = choose_setting(options.tiny), time.monotonic()
    torch.manual_seed(0)
    name = "CPU" if options.tiny else torch.cuda.get_device_name(setting.device)
    figures: dict[str, Any] = {"device": name, "bandwidth": 0.0, "rate": 0.0, "rows": []}
    left_out = 0
    with torch.inference_mode():
        if not options.tiny:
            figures["bandwidth"], figures["rate"] = ceilings(setting.device)
        for make in works(setting):
            if time.monotonic() - began > options.seconds:
                left_out += 1
                continue
            if not any(part in make().name for part in options.only.split(",")):
                continue
            ceiling = figures["bandwidth"], figures["rate"]
            figures["rows"].append(try_out(make) if options.tiny else measure(make, *ceiling))
            print(line(figures["rows"][-1]), file=sys.stderr, flush=True)
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(figures, file, indent=1)
    bandwidth, rate = figures["bandwidth"] / 1e12, figures["rate"] / 1e12
    print(f"{name}, torch {torch.__version__}: copy {bandwidth:.2f} TB/s, bf16 {rate:.0f} TFLOP/s\n")
    print(*HEADER, *map(line, figures["rows"]), sep="\n")
    if left_out:
        print(f"\n{left_out} works were left out: the time was over")


if __name__ == "__main__":
    main()
