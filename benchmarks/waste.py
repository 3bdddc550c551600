"""Measures how much of the allocated KV cache is empty, on the ragged workload of benchmarks/serve.py.

    python -m benchmarks.waste

64 requests at once, 16 to 512 tokens of prompt and 16 to 256 of output, on a scheduler whose worker makes
tokens of nothing; block sizes and token budgets as given in the table. "waste" is slots without a computed
token over slots of all held blocks, over all steps; "in prompts" the part of it that belongs to prompts
that are not computed yet.
"""

import argparse
from dataclasses import dataclass

from benchmarks.scheduler import SAMPLING
from engine_core.intake.limits import Limits
from engine_core.intake.validation import make_request
from engine_core.kv_cache.fragmentation import count_empty
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.result import Result
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from pagewire_bench.workloads import WORKLOADS

VOCAB = 1 << 15
CONTEXT = 8192
BLOCK_SIZES = (8, 16, 32, 64, 128)
BUDGETS = (256, 2048, 8192)
SLOTS = 1 << 17


@dataclass
class Figures:
    """Slots, summed over steps."""

    allocated: int = 0
    empty: int = 0
    in_prompts: int = 0


def measure(block_size: int, budget: int, repetition: int) -> Figures:
    """Runs the workload to its end."""
    scheduler = Scheduler(
        num_blocks=SLOTS // block_size,
        block_size=block_size,
        max_num_seqs=256,
        max_num_batched_tokens=budget,
    )
    limits = Limits(
        vocab_size=VOCAB,
        max_model_len=CONTEXT,
        max_num_seqs=256,
        eos_token_ids=frozenset(),
        num_blocks=SLOTS // block_size,
        block_size=block_size,
    )
    for handle, request in enumerate(WORKLOADS["ragged"].requests(repetition, VOCAB, CONTEXT), 1):
        message = engine_pb2.AddRequest(
            handle=handle,
            request_id=str(handle),
            prompt_token_ids=pack_u32(request.prompt),
            sampling=SAMPLING,
            stopping=generation_pb2.StoppingCriteria(max_tokens=request.output, min_tokens=0),
        )
        scheduler.add(make_request(message, b"frontend", 0.0, limits))
    figures = Figures()
    while scheduler.requests:
        plan = scheduler.schedule(0.0)
        pool = scheduler.pool
        figures.allocated += (pool.num_blocks - pool.num_free) * block_size
        figures.empty += count_empty(scheduler.tables, scheduler.states.holders())
        figures.in_prompts += sum(
            sequence.num_new_tokens - 1 for sequence in scheduler.running if sequence.num_new_tokens > 1
        )
        scheduler.update(Result(plan.step, [100 + plan.step % 1000] * len(plan.sample_rows)))
    return figures


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| tokens per block | tokens per step | waste | in prompts |")
    print("| --- | --- | --- | --- |")
    for block_size in BLOCK_SIZES:
        for budget in BUDGETS:
            runs = [measure(block_size, budget, repetition) for repetition in range(options.repeats)]
            allocated = sum(run.allocated for run in runs)
            waste = sum(run.empty for run in runs) / allocated
            prompts = sum(run.in_prompts for run in runs) / allocated
            print(f"| {block_size} | {budget} | {waste:.1%} | {prompts:.1%} |", flush=True)


if __name__ == "__main__":
    main()
