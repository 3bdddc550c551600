"""What a service costs before it does much: time to ready and to the first token, CPU, resident memory.

    python -m benchmarks.service.startup [MODEL] [--cold] [--num-blocks N] [--repeats N] [--streams N]
    python -m benchmarks.service.startup [MODEL] --cpu-kernels avx2    # another set than the best one

--cold: each start with an empty cache of compiled kernels. CPU is what each process has used until the first
token, with its children that have ended: it depends less than time on other processes. Memory at rest is
the proportional set of each process (shared pages divided among the processes that share them), against the
model's weights and the KV pool; then come the resident sets while that many streams are open at once, and the
proportional sets of all processes together, standbys and readers of prompts included.
"""

import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import make_parser
from benchmarks.service.breakdown import spread
from benchmarks.service.processes import by_role, cpu_seconds, proportional_mb, resident_mb, tree_mb
from pagewire import AsyncClient, Client, SamplingParams
from pagewire.checkpoints.paths import checkpoint_path
from pagewire.config import DEMO_MODEL, ServeConfig
from pagewire.local_service import Service

SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class Start:
    """One start. Seconds."""

    ready: float
    first_token: float
    cpu: dict[str, float]


def start(config: ServeConfig, cold: bool) -> Start:
    """From nothing to the first token of a short prompt."""
    with tempfile.TemporaryDirectory() as cache:
        if cold:
            os.environ["XDG_CACHE_HOME"] = cache
        begin = time.perf_counter()
        with Service(config) as service, Client(service.address) as client:
            ready = time.perf_counter() - begin
            client.generate([1, 2, 3], temperature=0, max_tokens=1)
            first_token = time.perf_counter() - begin
            pids = {SUPERVISOR: service.pid, **{role: p[0] for role, p in by_role(service.pid).items()}}
            return Start(
                ready, first_token, {role: cpu_seconds(pid, children=True) for role, pid in pids.items()}
            )


def first_tokens(address: str, times: int) -> list[float]:
    """Milliseconds to the first token of an idle service, again and again."""
    results = []
    with Client(address) as client:
        for _ in range(times):
            time.sleep(0.1)
            start = time.perf_counter()
            with client.stream("The capital of France is", temperature=0, max_tokens=2) as stream:
                next(stream)
                results.append(1000 * (time.perf_counter() - start))
    return results[1:]


async def open_streams(address: str, count: int, pids: dict[str, int]) -> tuple[dict[str, float], float]:
    """Resident sets while all streams are open and have had their first tokens, and the proportional sets of
    all processes together."""
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    async with AsyncClient(address) as client:
        streams = [client.stream(f"Stream number {number}:", params) for number in range(count)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        sizes = {role: resident_mb(pid) for role, pid in pids.items() if role != SUPERVISOR}
        tree = tree_mb(pids[SUPERVISOR])
        await asyncio.gather(*(stream.result() for stream in streams))
    return sizes, tree


def stored_bytes(model: str) -> int:
    """Returns the size of a checkpoint's weights on disk."""
    path = checkpoint_path(model)
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def tell_memory(at_rest: dict[str, float], weights: float, stored: float, pool: float) -> None:
    """All in MB, of each process and of what was asked for. stored: the weights as the checkpoint has them,
    which may be more than they take in the worker."""
    whole = sum(at_rest.values())
    beyond = whole - weights - pool  # of a large pool most has not been written yet, and is not there
    shares = f"{whole / (stored + pool):.2f} of the checkpoint ({stored:.0f}) and the KV pool ({pool:.0f})"
    held = f"{whole / (weights + pool):.2f} with weights as held ({weights:.0f})"
    print(f"at rest {whole:.0f} MB, {shares}, {held}:")
    print("  " + ", ".join(f"{role} {size:.0f}" for role, size in at_rest.items()))
    if beyond > 0:
        print(f"  {beyond:.0f} MB are neither weights nor pool")


def main() -> None:
    """Measures and prints."""
    parser = make_parser(__doc__)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--num-blocks", type=int, default=0, help="of the KV cache; default: the service's")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    config = ServeConfig(
        model=options.model,
        port=0,
        num_blocks=options.num_blocks,
        cpu_kernels=options.cpu_kernels,
        log_level="error",
    )
    starts = [start(config, options.cold) for _ in range(options.repeats)]
    print(f"seconds to ready: {spread([one.ready for one in starts])}")
    print(f"seconds to the first token: {spread([one.first_token for one in starts])}")
    for role in starts[0].cpu:
        print(f"{role}: {spread([one.cpu[role] for one in starts])} s of CPU")
    with Service(config) as service:
        pids = {role: found[0] for role, found in by_role(service.pid).items()}
        everything = {SUPERVISOR: service.pid, **pids}
        first = first_tokens(service.address, 21)
        at_rest = {role: proportional_mb(pid) for role, pid in everything.items()}
        idle = {role: resident_mb(pid) for role, pid in pids.items()}
        tree = [tree_mb(service.pid)]
        busy, with_streams = asyncio.run(open_streams(service.address, options.streams, everything))
        tree += [with_streams, tree_mb(service.pid)]
        weights, pool = (service.facts[name] / 1e6 for name in ("weight_bytes", "kv_cache_bytes"))
    print(f"ms to the first token, idle service: {spread(first)}")
    stored = stored_bytes(options.model) / 1e6
    tell_memory(at_rest, weights, stored, pool)
    for role in pids:
        print(
            f"{role}: {idle[role]:.0f} MB resident when idle, {busy[role]:.0f} with {options.streams} streams"
        )
    idle_mb, open_mb, after_mb = tree
    print(f"all processes: {idle_mb:.0f} MB when idle, {open_mb:.0f} with streams, {after_mb:.0f} after them")
    if options.json:
        figures = {
            "ready_s": [one.ready for one in starts],
            "first_token_s": [one.first_token for one in starts],
            "cpu_s": [one.cpu for one in starts],
            "first_token_idle_ms": first,
            "at_rest_mb": at_rest,
            "weights_mb": weights,
            "checkpoint_mb": stored,
            "kv_pool_mb": pool,
            "idle_mb": idle,
            "busy_mb": busy,
            "tree_mb": tree,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
