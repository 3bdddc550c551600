"""The number of KV blocks that fit into the memory that a profiling run leaves.

    room = utilization * total - (total - free) - what steps take

free is reported by the driver with the weights loaded and the kernels of a step compiled, so that memory of
other processes counts as used. Captured graphs keep their temporaries in one pool of their own, and the
driver keeps their nodes. Steps take what is larger: the largest step, launched kernel by kernel before there
are graphs; or all graphs, and what the largest step takes beside its graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kernels.triton import requirements
from kernels.triton.sampling.ops import TritonSampling
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.cuda.backend import CudaBackend
from worker.cuda.device import Device, Memory
from worker.cuda.graphs import graph_sizes, sampling_sizes
from worker.cuda.startup.warm_up import HUNGRY, most_step_tokens, run, step_of
from worker.executor.executor import StepExecutor
from worker.memory.kv_cache import WHAT
from worker.step.warmup_plans import GREEDY, prefill_plan
from worker.vision.encoder import ImageEncoder

REUSED_BLOCKS = 1 << 18
"""Blocks beyond what all rows can use at full length hold prefixes of finished requests. This many are 4
million tokens in blocks of 16; the core keeps about 100 bytes for each."""
LAUNCHED_STEPS = 2
"""Steps of which the core plans one while the device computes the other."""
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Demand:
    """The requested cache size."""

    bytes_per_block: int
    requested: int  # blocks; 0: as many as fit
    useful: int  # blocks that all rows can use at full length
    per_sequence: int  # blocks that one sequence of full length needs; 0: fewer are enough
    utilization: float
    reused: int = REUSED_BLOCKS  # blocks that prefixes of finished requests may have


def useful_blocks(initialize: worker_pb2.Initialize, per_sequence: int, bidirectional: bool) -> int:
    """Returns the blocks that all rows can use. per_sequence: of a row of full length. bidirectional: rows
    compute their prompts in one step, and have blocks for that step alone."""
    rows, tokens = initialize.max_num_seqs, initialize.max_num_batched_tokens
    if not bidirectional:
        return rows * per_sequence
    return min(rows * per_sequence, LAUNCHED_STEPS * (tokens // initialize.block_size + min(rows, tokens)))


def largest_steps(
    runner: StepExecutor[CudaBackend], most_tokens: int, captures: bool, device: Device, pools: bool = False
) -> int:
    """Returns the temporary bytes that steps take: of the largest one, or of all graphs and that one.

    The largest step has all tokens, all rows sample, and each requests the features that take memory:
    penalties, which count every token of the vocabulary, filters, and log-probabilities, the first row also
    of its prompt. A cache of one block is enough: all rows write to it. One with adapters is launched, too.
    pools: see run(); nothing is sampled then.
    """
    rows = runner.rows
    num_rows = min(rows.max_num_rows, most_tokens)
    each, rest = divmod(most_tokens, num_rows)
    longest = rows.max_model_len - 1
    counts = [min(longest, each + (index < rest)) for index in range(num_rows)]
    counts[0] = min(longest, counts[0] + most_tokens - sum(counts))
    plan = prefill_plan(counts, rows.block_size, GREEDY if pools else HUNGRY, one_block=True)
    if not pools:
        _request_logprobs(plan, rows.vocab_size)
    copied = min(
        requirements.BUFFER_BYTES, num_rows * runner.backend.bytes_per_block
    )  # a block for each row that forks
    # Few rows that decode leave results of chunks to each other, which many do not.
    decoding = [
        device.peak_of(partial(_decode, runner, 1 << power, pools)) for power in range(num_rows.bit_length())
    ]
    launched = (
        partial(run, runner, plan, pools),
        partial(runner.backend.run_adapted, most_step_tokens(rows, most_tokens)),
    )
    vision, encoded = runner.backend.model.vision, 0
    if isinstance(vision, ImageEncoder):
        encoded = device.peak_of(torch.inference_mode()(partial(vision, vision.largest_image())))
    largest = max(copied, encoded, *map(device.peak_of, launched), *decoding)
    if not captures:
        return largest
    graphs = graph_bytes(runner, most_step_tokens(rows, most_tokens), 0 if pools else num_rows, device)
    beside = max(copied, *map(device.peak_of, launched))
    return max(largest, graphs + max(decoding) - decoding[-1] + beside)


def _request_logprobs(plan: worker_pb2.StepPlan, vocab_size: int) -> None:
    """Has all rows request log-probabilities, the first one also of its prompt."""
    for new in plan.new_rows:
        new.logprobs.top_n = min(TritonSampling.TOP_N_SIZES[0], vocab_size)
    first = plan.new_rows[0]
    first.prompt_logprobs.CopyFrom(first.logprobs)
    first.prompt_logprobs_start = 1


def _decode(runner: StepExecutor[CudaBackend], size: int, pools: bool) -> None:
    run(runner, prefill_plan([1] * size, runner.rows.block_size, one_block=True), pools)


def graph_bytes(
    runner: StepExecutor[CudaBackend], most_tokens: int, most_samples: int, device: Device
) -> int:
    """Returns the bytes that graphs of steps of up to so many tokens will take, and of sampling for up to so
    many rows; 0: all rows pool."""

    def capture(size: int) -> int:
        run(runner, step_of(size, runner.rows), pools=not most_samples)
        return _taken(lambda: runner.backend.capture(size), device)

    def capture_sampling(size: int) -> int:
        return _taken(lambda: runner.backend.capture_sampling(size), device)

    steps = _of_all(graph_sizes(most_tokens), capture)
    return steps + (_of_all(sampling_sizes(most_samples), capture_sampling) if most_samples else 0)


def _of_all(sizes: Sequence[int], capture: Callable[[int], int]) -> int:
    """Returns the bytes that captures of these sizes, ascending, will take: captures the two largest.

    The first has what all of them share (temporaries, a library's workspace for the stream); what the second
    adds is what each further one is expected to add. capture: returns what one took.
    """
    taken = [capture(size) for size in reversed(sizes[-2:])]
    return taken[0] + sum(taken[1:]) * (len(sizes) - 1)


def _taken(run: Callable[[], None], device: Device) -> int:
    """Returns the bytes of memory that run() leaves in use."""
    free = device.memory().free
    run()
    return max(0, free - device.memory().free)


def choose_num_blocks(memory: Memory, temporary: int, demand: Demand, name: str) -> int:
    """Returns the number of KV blocks. Raises StartupError when the device is too small.

    temporary: bytes of largest_steps(). name: of the device.
    """
    room = int(demand.utilization * memory.total) - (memory.total - memory.free) - temporary
    affordable = room // demand.bytes_per_block - 1  # one is for padding
    state = (
        f"{name} has {memory.total / GIB:.1f} GiB, of which {(memory.total - memory.free) / GIB:.1f} are in"
        f" use with the weights, {temporary / GIB:.1f} are for a step and for graphs,"
        f" and {max(0, room) / GIB:.1f} are left at --gpu-memory-utilization {demand.utilization:g}"
    )
    if affordable < 1:
        raise StartupError(
            WHAT,
            f"{state}: not enough for one block of {demand.bytes_per_block / MIB:.1f} MiB",
            "use a larger device, a smaller model, a higher --gpu-memory-utilization, fewer"
            " --max-num-batched-tokens, or --enforce-eager, without which graphs take a part",
        )
    if demand.requested > affordable:
        raise StartupError(
            WHAT,
            f"{state}: {affordable} blocks, not {demand.requested}",
            f"use --num-blocks {affordable} or less, or leave it out",
        )
    blocks = demand.requested or min(affordable, max(demand.useful, demand.reused))
    if blocks < demand.per_sequence:
        raise StartupError(
            WHAT,
            f"{state}: {blocks} blocks, but one sequence of --max-model-len takes {demand.per_sequence}",
            f"use a --max-model-len of 1/{-(-demand.per_sequence // blocks)} of that, or leave it out: the"
            " context is then what fits",
        )
    return blocks
