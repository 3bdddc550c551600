"""How many KV blocks fit: what a profiling run leaves of the device's memory.

    room = utilization * total - (total - free) - largest step - largest captured step

free is what the driver says with the weights loaded and the kernels of a step compiled, so that the memory of
other processes counts as used. Captured graphs keep their temporaries in memory of their own, all in one.
"""

from dataclasses import dataclass

from pagewire.errors import StartupError
from worker.cuda.backend import CudaBackend
from worker.cuda.device import Device, Memory
from worker.cuda.top_n import USUAL
from worker.cuda.warm_up import HUNGRY, run
from worker.executor.executor import StepExecutor
from worker.memory.kv_cache import WHAT
from worker.step.warmup_plans import prefill_plan

REUSED_BLOCKS = 1 << 18
"""Blocks beyond what all rows can use at full length are for prefixes of requests that have ended. So many
are 4 million tokens in blocks of 16; the core keeps some 100 bytes for each."""
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Demand:
    """What is asked for."""

    bytes_per_block: int
    requested: int  # blocks; 0: as many as fit
    useful: int  # blocks that all rows can use at full length
    per_sequence: int  # blocks of one sequence of full length; 0: less will do
    utilization: float


def largest_steps(runner: StepExecutor[CudaBackend], most_tokens: int, captures: bool, device: Device) -> int:
    """Bytes that the largest step takes for a while; and with graphs, the largest captured one for good.

    The largest has all tokens, all rows sample, and each asks for whatever takes memory: penalties, which
    count every token of the vocabulary, filters, and log-probabilities, the first one also of its prompt. The
    runner's cache may be of one block: all rows write to it.
    """
    rows = runner.rows
    num_rows = min(rows.max_num_rows, most_tokens)
    each, rest = divmod(most_tokens, num_rows)
    longest = rows.max_model_len - 1
    counts = [min(longest, each + (index < rest)) for index in range(num_rows)]
    counts[0] = min(longest, counts[0] + most_tokens - sum(counts))
    plan = prefill_plan(counts, rows.block_size, HUNGRY, one_block=True)
    for new in plan.new_rows:
        new.logprobs.top_n = min(USUAL, rows.vocab_size)
    plan.new_rows[0].prompt_logprobs.CopyFrom(plan.new_rows[0].logprobs)
    plan.new_rows[0].prompt_logprobs_start = 1
    largest = device.peak_of(lambda: run(runner, plan))
    if not captures:
        return largest
    return largest + device.peak_of(
        lambda: run(runner, prefill_plan([1] * num_rows, rows.block_size, one_block=True))
    )


def choose_num_blocks(memory: Memory, temporary: int, demand: Demand, name: str) -> int:
    """temporary: of largest_steps(). name: of the device. Raises StartupError when it is too small."""
    room = int(demand.utilization * memory.total) - (memory.total - memory.free) - temporary
    affordable = room // demand.bytes_per_block - 1  # one is the worker's own
    state = (
        f"{name} has {memory.total / GIB:.1f} GiB, of which {(memory.total - memory.free) / GIB:.1f} are in"
        f" use with the weights, {temporary / GIB:.1f} are for a step,"
        f" and {max(0, room) / GIB:.1f} are left at --gpu-memory-utilization {demand.utilization:g}"
    )
    if affordable < 1:
        raise StartupError(
            WHAT,
            f"{state}: not enough for one block of {demand.bytes_per_block / MIB:.1f} MiB",
            "use a larger device, a smaller model, a higher --gpu-memory-utilization, or fewer"
            " --max-num-batched-tokens",
        )
    if demand.requested > affordable:
        raise StartupError(
            WHAT,
            f"{state}: {affordable} blocks, not {demand.requested}",
            f"use --num-blocks {affordable} or less, or leave it out",
        )
    blocks = demand.requested or min(affordable, max(demand.useful, REUSED_BLOCKS))
    if blocks < demand.per_sequence:
        raise StartupError(
            WHAT,
            f"{state}: {blocks} blocks, but one sequence of --max-model-len takes {demand.per_sequence}",
            f"use a --max-model-len of 1/{-(-demand.per_sequence // blocks)} of that, or leave it out: the"
            " context is then what fits",
        )
    return blocks
