"""Measures what preemption costs under a load of ten times the pool: recomputing, swapping, or either.

    python -m benchmarks.preemption                    # the demo model on this machine, and a simulated H200
    python -m benchmarks.preemption --only h200

The scheduler and the worker's runner in one process, without sockets. Everything arrives at once; one
request in three has four sequences, so that some victims share what they hold. Three policies take turns on
the same load: "recompute" has no swap space, "swap" copies whatever has computed anything, "cheaper" weighs
the two with the constants that the worker has measured. Time is that of all steps in the worker: CPU time of
one thread for the demo model; the formula's for the simulated H200, which has the shape of Llama-3-8B and a
virtual clock. All figures are sums over the repetitions, whose loads differ.
"""

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

from benchmarks.pipeline import LLAMA_3_8B  # noqa: E402
from engine_core.identity import Limits  # noqa: E402
from engine_core.intake.validation import make_request  # noqa: E402
from engine_core.kv_cache.host_swap import SwapCosts  # noqa: E402
from engine_core.scheduler.scheduler import Scheduler  # noqa: E402
from engine_core.step.plan import encode_plan  # noqa: E402
from engine_core.step.result import decode_result  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.config import WorkerConfig  # noqa: E402
from pagewire.internal.v1 import engine_pb2, worker_pb2  # noqa: E402
from pagewire.ipc.columns import pack_u32  # noqa: E402
from pagewire.v1 import generation_pb2  # noqa: E402
from worker.cpu.load import load  # noqa: E402
from worker.simulated.clock import Clock  # noqa: E402
from worker.simulated.load import load as load_simulated  # noqa: E402

BLOCK_SIZE = 16
MODEL = LLAMA_3_8B | {"vocab_size": 128256, "eos_token_id": 128001}


class Runner(Protocol):
    """What executes steps, with a model or without."""

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult: ...


@dataclass(frozen=True)
class Setting:
    """A machine, and a pool for a tenth of what it is asked for."""

    num_blocks: int
    rows: int
    budget: int
    prompt: int  # longest, in tokens; the shortest is a sixteenth of it
    output: int  # longest; the shortest is 16
    swap_gib: float


SETTINGS = {
    "demo": Setting(num_blocks=96, rows=32, budget=512, prompt=64, output=512, swap_gib=0.25),
    "h200": Setting(num_blocks=8192, rows=256, budget=2048, prompt=512, output=4096, swap_gib=256.0),
}


@dataclass(frozen=True)
class Machine:
    """A loaded runner, what it has found out, and seconds."""

    runner: Runner
    ready: worker_pb2.Ready
    clock: Callable[[], float]


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    seconds: float
    steps: int
    preemptions: int
    swapped: int
    computed: int  # tokens


def requests(setting: Setting, vocab_size: int, seed: int) -> list[engine_pb2.AddRequest]:
    """Ten times the tokens that the pool holds."""
    draw = random.Random(seed)
    made: list[engine_pb2.AddRequest] = []
    left = 10 * setting.num_blocks * BLOCK_SIZE
    while left > 0:
        prompt, output = draw.randint(setting.prompt // 16, setting.prompt), draw.randint(16, setting.output)
        n = draw.choice([1, 1, 4])
        left -= prompt + n * output
        sampling = generation_pb2.SamplingParams(
            temperature=1, top_p=1, top_k=0, min_p=0, typical_p=1, frequency_penalty=0, presence_penalty=0,
            repetition_penalty=1, seed=len(made), n=n,
        )  # fmt: skip
        made.append(
            engine_pb2.AddRequest(
                handle=len(made) + 1,
                request_id=str(len(made)),
                prompt_token_ids=pack_u32([draw.randrange(16, vocab_size) for _ in range(prompt)]),
                sampling=sampling,
                stopping=generation_pb2.StoppingCriteria(max_tokens=output, min_tokens=0, ignore_eos=True),
            )
        )
    return made


def run(setting: Setting, machine: Machine, policy: str, load: list[engine_pb2.AddRequest]) -> Figures:
    """The load, from its arrival to its end."""
    runner, ready = machine.runner, machine.ready
    measured = SwapCosts(ready.prefill_us_per_token, ready.swap_us_per_block)
    always = SwapCosts(math.inf, ready.swap_us_per_block)
    scheduler = Scheduler(
        num_blocks=setting.num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=setting.rows,
        max_num_batched_tokens=setting.budget,
        num_host_blocks=0 if policy == "recompute" else ready.num_host_blocks,
        swap_costs=always if policy == "swap" else measured,
    )
    limits = Limits(
        vocab_size=ready.model.vocab_size,
        max_model_len=ready.model.max_model_len,
        max_num_seqs=setting.rows,
        eos_token_ids=frozenset(),
        num_blocks=setting.num_blocks,
        block_size=BLOCK_SIZE,
    )
    for message in load:
        scheduler.add(make_request(message, b"", 0.0, limits))
    seconds, computed = 0.0, 0
    while scheduler.requests:
        plan = scheduler.schedule(0.0)
        began = machine.clock()
        result = runner.execute(encode_plan(plan))
        seconds += machine.clock() - began
        scheduler.update(decode_result(result, plan))
        scheduler.take_outputs()
        computed += sum(plan.counts)
    runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32(scheduler.rows.take_removed())))
    return Figures(
        seconds=seconds,
        steps=scheduler.step,
        preemptions=scheduler.num_preemptions,
        swapped=scheduler.swap.num_swapped_out,
        computed=computed,
    )


@contextmanager
def worker(name: str, setting: Setting) -> Iterator[Machine]:
    """Loads it."""
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder("demo")),
        device="cpu",
        dtype="auto",
        max_num_seqs=setting.rows,
        max_num_batched_tokens=setting.budget,
        block_size=BLOCK_SIZE,
        num_blocks=setting.num_blocks,
        gpu_memory_utilization=0.9,
        swap_space_bytes=int(setting.swap_gib * (1 << 30)),
        profile="h200",
    )
    if name == "demo":
        yield Machine(*load(initialize, 0, 1, lambda what, fraction: None), time.process_time)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        initialize.model_path, initialize.device = folder, "simulated"
        elapsed = [0.0]

        def sleep(seconds: float) -> None:
            elapsed[0] += seconds

        def now() -> float:
            return elapsed[0]

        yield Machine(*load_simulated(initialize, WorkerConfig(), Clock(now, sleep)), now)


def measure(name: str, repetitions: int) -> None:
    """Prints the rows of one machine."""
    setting = SETTINGS[name]
    with worker(name, setting) as machine:
        ready = machine.ready
        print(
            f"{name}: {ready.prefill_us_per_token:.1f} us to compute a token of a prompt,"
            f" {ready.swap_us_per_block:.1f} us to copy a block of {BLOCK_SIZE}; {setting.num_blocks} blocks"
        )
        print("| policy | device, s | ratio | steps | preempted | of these swapped | tokens computed |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        runs: dict[str, list[Figures]] = {"recompute": [], "swap": [], "cheaper": []}
        for seed in range(repetitions):
            messages = requests(setting, ready.model.vocab_size, seed)
            for policy, figures in runs.items():
                figures.append(run(setting, machine, policy, messages))
        for policy, figures in runs.items():
            seconds = sum(each.seconds for each in figures)
            ratio = seconds / sum(each.seconds for each in runs["recompute"])
            counts = (
                sum(getattr(each, field) for each in figures)
                for field in ("steps", "preemptions", "swapped", "computed")
            )
            print(f"| {policy} | {seconds:.2f} | {ratio:.3f} | {' | '.join(map(str, counts))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=[*SETTINGS])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    for name in [options.only] if options.only else SETTINGS:
        measure(name, options.repetitions)


if __name__ == "__main__":
    main()
