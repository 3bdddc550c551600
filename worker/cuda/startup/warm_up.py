"""Steps before the first request: they compile every configuration of every kernel, and are captured as
graphs.

What Triton specializes kernels on, and how a step can change it:

    tokens of a step     latents: whether programs share a token's context, as they do where tokens are few
                         sizes of products: kernels.triton.experts.tile_sizes.token_classes
    rows of a step       the width of sums over rows in kernels.triton.step.prepare_inputs, and in
                         kernels.triton.attention.work_list: a power of two
    sampling             the features that rows request: example_rows()

Everything else is fixed by the model, or a number that no kernel specializes on. So steps of each power of
two of rows, decoding alone and beside a prompt, and prompts of each class of tokens cover all of them. They
are executed as any plan is; their rows are removed again, and all of them share one block. Graphs have rows
of padding, one more than there may be rows: what that compiles is launched where they are captured.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from triton import knobs

from kernels.triton.sampling.ops import TritonSampling
from kernels.triton_ops import TritonOps
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2, prompt_pb2
from worker.cuda.backend import CudaBackend
from worker.cuda.graphs import graph_sizes, sampling_sizes
from worker.executor.executor import StepExecutor
from worker.step.rows import RowTable
from worker.step.warmup_plans import GREEDY, prefill_plan, removal_plan

logger = logging.getLogger(__name__)


def _params(changes: generation_pb2.SamplingParams) -> generation_pb2.SamplingParams:
    params = generation_pb2.SamplingParams()
    params.CopyFrom(GREEDY)
    params.MergeFrom(changes)
    return params


HUNGRY = _params(
    generation_pb2.SamplingParams(
        temperature=1.0, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1
    )
)
"""Parameters that take the most memory to sample."""


def example_rows(vocab_size: int) -> Iterator[worker_pb2.NewRow]:
    """Yields rows without number, tokens and blocks. One step for each is enough: the kernels of a step are
    those that any of its rows needs, and each is compiled once."""
    row, params = worker_pb2.NewRow, generation_pb2.SamplingParams
    yield row(sampling=params(temperature=0))
    yield row(sampling=params(temperature=1))
    yield row(sampling=params(temperature=1, top_k=2))
    yield row(sampling=params(temperature=1, typical_p=0.5))
    yield row(sampling=params(temperature=0, presence_penalty=1, logit_bias={0: 1.0}))
    yield row(
        sampling=params(temperature=0),
        bad_words=[prompt_pb2.TokenIds(ids=[0, 0])],
        stop_token_ids=[0],
        min_tokens=2,
    )
    for largest in TritonSampling.TOP_N_SIZES:
        count = min(largest, vocab_size)
        yield row(sampling=params(temperature=0), logprobs=generation_pb2.LogprobOptions(top_n=count))
        yield row(sampling=params(temperature=0), num_beam_candidates=count)


def warm_up(
    runner: StepExecutor[CudaBackend],
    most_tokens: int,
    captures: bool,
    progress: Callable[[float], None],
    with_experts: bool = False,
    pools: bool = False,
) -> None:
    """Runs the warm-up. Does nothing where no row can have output.

    most_tokens: of a step. captures: whether to capture graphs. progress: called with the fraction done.
    with_experts: the model has products by expert, or by head. pools: see run().
    """
    rows = runner.rows
    if rows.max_model_len < 2:
        return
    captured = graph_sizes(most_step_tokens(rows, most_tokens)) if captures else ()
    sampled = sampling_sizes(min(rows.max_num_rows, most_tokens)) if captures and not pools else ()
    plans = list(_plans(rows, most_tokens, runner.backend.most_queries, captured, with_experts))
    plans += () if pools else (*_sampled(rows), _with_copies(rows))
    for count in TritonOps.token_classes(most_tokens):
        runner.backend.score(count)
    for done, plan in enumerate(plans):
        run(runner, plan, pools)
        progress(done / (len(plans) + len(captured)))
    for size in (1, most_step_tokens(rows, most_tokens)):
        if not captures:
            runner.backend.run_adapted(size)
        runner.backend.score_adapted(size)
        runner.backend.run_seeing_media(size)
    for done, size in enumerate(reversed(captured)):  # the largest first: the others fit into its memory
        runner.backend.capture(size)
        progress((len(plans) + done) / (len(plans) + len(captured)))
    for size in reversed(sampled):
        runner.backend.capture_sampling(size)
    for size in captured:
        run(runner, step_of(size, rows), pools)


def run(runner: StepExecutor[CudaBackend], plan: worker_pb2.StepPlan, pools: bool = False) -> None:
    """Executes a step and removes its rows. pools: rows pool all of their states, as those of an encoder do,
    in place of sampling."""
    for new in plan.new_rows if pools else ():
        new.pooling.type = engine_pb2.POOLING_TYPE_CLS
    runner.execute(plan)
    runner.execute(removal_plan(plan))


def most_step_tokens(rows: RowTable, most_tokens: int) -> int:
    """Returns the tokens of the largest step that rows can have. most_tokens: that a step may have."""
    return min(most_tokens, rows.max_num_rows * (rows.max_model_len - 1))


def step_of(size: int, rows: RowTable) -> worker_pb2.StepPlan:
    """Returns a plan of `size` tokens, at most most_step_tokens(), all in one block: of as many rows that
    decode, or of few rows with prompts where there are not as many."""
    if size <= rows.max_num_rows:
        return _decoding(size, rows)
    return prefill_plan(even_counts(size, rows), rows.block_size, one_block=True)


def _decoding(size: int, rows: RowTable) -> worker_pb2.StepPlan:
    """Returns a plan of `size` rows that decode, all in one block."""
    return prefill_plan([1] * size, rows.block_size, one_block=True)


def _plans(
    rows: RowTable, most_tokens: int, most_queries: int, captured: tuple[int, ...], with_experts: bool
) -> Iterator[worker_pb2.StepPlan]:
    """Yields the plans to execute without graphs. Sizes that are captured later are among them: libraries
    initialize on their first use, which a graph cannot capture."""
    most = min(rows.max_num_rows, most_tokens)
    powers = {most, *(1 << power for power in range(most.bit_length()))}
    prompt = min(max(2 * rows.block_size, most_queries + 1), rows.max_model_len - 1)
    for size in sorted(powers.union(captured)):
        yield step_of(size, rows)
        if size in powers and prompt > 1 and size - 1 + prompt <= most_tokens:
            yield prefill_plan([1] * (size - 1) + [prompt], rows.block_size, one_block=True)
    for tokens in TritonOps.token_classes(most_tokens, with_experts):
        counts = even_counts(tokens, rows)
        if sum(counts) == tokens:
            yield prefill_plan(counts, rows.block_size, one_block=True)


def even_counts(tokens: int, rows: RowTable) -> list[int]:
    """Returns how many tokens each of a few rows computes: together so many, or as many as rows have."""
    longest = rows.max_model_len - 1
    num_rows = min(rows.max_num_rows, -(-tokens // longest))
    each, rest = divmod(min(tokens, num_rows * longest), num_rows)
    return [each + (index < rest) for index in range(num_rows)]


def _with_copies(rows: RowTable) -> worker_pb2.StepPlan:
    """Returns a plan that copies a block onto itself."""
    plan = _decoding(1, rows)
    plan.copy_sources = plan.copy_targets = pack_u32([0])
    return plan


def _sampled(rows: RowTable) -> Iterator[worker_pb2.StepPlan]:
    """Yields plans that cover the features of the sampler."""
    for example in example_rows(rows.vocab_size):
        plan = _decoding(1, rows)
        plan.new_rows[0].MergeFrom(example)
        yield plan


class CompileWatch:
    """Counts kernel configurations that are compiled, or loaded from Triton's cache on disk. Logs those that
    are compiled while serving: warm-up lacks them, and a step that compiles delays all rows by seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.late: list[str] = []
        self._serving = False

    def begin(self) -> None:
        """Counts from now on."""
        knobs.runtime.jit_post_compile_hook = self._compiled

    def serving(self) -> None:
        """Marks the end of the warm-up: kernels compiled from now on are logged."""
        self._serving = True

    def _compiled(self, *, fn: Any, repr: str, **_: Any) -> None:
        """Called by Triton for each kernel configuration."""
        self.count += 1
        if self._serving:
            self.late.append(repr)
            logger.warning(
                "Triton compiled %s.%s while serving: warm-up lacks it: %s", fn.module, fn.name, repr
            )
