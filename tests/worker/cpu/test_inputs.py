"""Inputs made in one call, beside their reference."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels.attention.block_plan import BlockAttentionPlan
from kernels.attention.kv_cache_spec import AttentionSpec, CacheLayout, KVCacheSpec
from kernels.attention.torch_plan import TorchAttentionPlan
from kernels.batch import StepBatch
from kernels.cpu.attention.block_attention import BlockPlan, block_kernels
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.sizes import PART
from kernels.cpu.step.inputs import CONTEXT_STEP, KEPT, KEPT_TOKENS, BlockInputs
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from tests.kernels.block_plans import plan_blocks
from tests.worker.step.checks import compiled_check
from tests.worker.step.test_rows import new_row
from worker.model_input import build_input_batch
from worker.step.plan_reader import Step, read_step
from worker.step.rows import RowTable

pytestmark = pytest.mark.cpu_kernels
LENGTHS = [300, 3, 40, 17, 90]
SPECS = AttentionSpec(2, 32), AttentionSpec(2, 32, window=8)
WIDE = AttentionSpec(2, 64)
LAYOUT = CacheLayout(16, 60, torch.bfloat16, torch.device("cpu"))


@pytest.fixture
def rows() -> RowTable:
    table = RowTable(6, 700, 1000, 16, 60)
    for row, length in enumerate(LENGTHS):
        blocks = [10 * row + i for i in range(-(-length // 16))]
        table.add(new_row(row, list(range(length)), blocks, prompt_len=max(1, length - 2)))
    return table


@pytest.fixture
def kernels() -> BlockKernels:
    made = block_kernels(torch.bfloat16, 16, 32, group=3)
    assert made is not None
    return made


@pytest.fixture
def inputs(rows: RowTable, kernels: BlockKernels) -> BlockInputs:
    return inputs_of(rows, SPECS, kernels)


def inputs_of(rows: RowTable, specs: Sequence[KVCacheSpec], kernels: BlockKernels) -> BlockInputs:
    return BlockInputs(rows.token_ids, rows.blocks, rows.prompt_lens, specs, kernels)


def step_of(
    rows: RowTable, work: tuple[list[int], list[int], list[int]], sources: list[int], kernels: BlockKernels
) -> Step:
    """work: rows, starts, counts. sources: among them; each samples once."""
    computing, starts, counts = work
    plan = worker_pb2.StepPlan(
        rows=pack_u32(computing),
        starts=pack_u32(starts),
        counts=pack_u32(counts),
        sample_rows=pack_u32([computing[source] for source in sources]),
        sample_sources=pack_u32(sources),
    )
    return read_step(plan, rows, 1000, compiled_check(rows))


def check(batch: StepBatch, step: Step, rows: RowTable, kernels: BlockKernels) -> None:
    """Against the reference, whose rows stand in another order."""
    work = step.rows, step.starts, step.counts
    reference = build_input_batch(rows, *work, step.sample_sources, SPECS, LAYOUT)
    places = torch.from_numpy(
        np.concatenate(
            [np.arange(at, at + count) for at, count in zip(reference.row_starts, step.counts, strict=True)]
        )
    )
    for one, other in (
        (batch.token_ids, reference.token_ids),
        (batch.positions, reference.positions),
        (batch.prompt_lens, reference.prompt_lens),
        (slot_rows(batch), slot_rows(reference)),
    ):
        assert torch.equal(one, other[places])
    assert reference.logit_tokens is not None
    logit_tokens = torch.arange(len(places)) if batch.logit_tokens is None else batch.logit_tokens
    assert torch.equal(places[logit_tokens], reference.logit_tokens)
    assert batch.row_starts.tolist() == (np.cumsum(step.counts) - step.counts).tolist()
    for spec in SPECS:
        _check_attention(plan_of(batch, spec), step, rows, kernels, spec.window)


def slot_rows(batch: StepBatch) -> torch.Tensor:
    """[T, K] of each kind of layer."""
    rows = []
    for plan in batch.attention.values():
        assert isinstance(plan, BlockAttentionPlan | TorchAttentionPlan)
        rows.append(plan.slot_rows.view(-1, 2))
    return torch.cat(rows, 1)


def plan_of(batch: StepBatch, spec: KVCacheSpec) -> BlockPlan:
    plan = batch.attention[spec]
    assert isinstance(plan, BlockAttentionPlan)
    return plan.plan


def _check_attention(
    plan: BlockPlan, step: Step, rows: RowTable, kernels: BlockKernels, window: int | None
) -> None:
    longest = int((step.starts + step.counts).max())
    assert longest <= plan.context < longest + CONTEXT_STEP
    expected = plan_blocks(kernels, step.starts, step.counts, rows.blocks[step.rows], window, 32, 2).items
    ends = plan.items[:, 0] + (plan.items[:, 3] + plan.items[:, 4] - 1) // kernels.group + 1
    of_part = np.minimum(ends - plan.items[:, 5] * PART, PART)
    assert (np.diff(np.where(plan.items[:, 5] < 0, ends, of_part)) <= 0).all()
    tables = (plan.items[:, 1] - rows.blocks.ctypes.data) // rows.blocks.strides[0]
    assert set(tables.tolist()) == set(step.rows.tolist())
    keep = [0, 2, 3, 4, 5, 6]
    assert sorted(map(tuple, plan.items[:, keep].tolist())) == sorted(map(tuple, expected[:, keep].tolist()))


def test_prompts_and_tokens(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    """With rows in the plan's order, and without padding."""
    step = step_of(rows, ([3, 0, 1, 4], [0, 299, 2, 30], [17, 1, 1, 60]), [1, 2, 3], kernels)
    batch = inputs(step)
    check(batch, step, rows, kernels)
    assert batch.logit_tokens is not None and batch.logit_tokens.tolist() == [17, 18, 78]


def test_what_is_there_is_used_again(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    """Steps that decode as many rows have one batch, with the numbers of the last one."""
    first = inputs(step_of(rows, ([0, 1], [299, 2], [1, 1]), [0, 1], kernels))
    assert first.logit_tokens is None, "every token is sampled from, in order"
    rows.append(np.array([0, 1]), np.array([7, 8]))
    step = step_of(rows, ([1, 0], [3, 300], [1, 1]), [0, 1], kernels)
    assert inputs(step) is first
    check(first, step, rows, kernels)
    swapped = step_of(rows, ([1, 0], [3, 300], [1, 1]), [1, 0], kernels)
    second = inputs(swapped)
    assert second is not first, "samples come in another order"
    check(second, swapped, rows, kernels)
    piece = step_of(rows, ([2], [0], [40]), [], kernels)
    check(inputs(piece), piece, rows, kernels)
    assert inputs(step) is first, "those of the last few shapes are kept"
    check(first, step, rows, kernels)
    for count in range(1, KEPT + 1):
        inputs(step_of(rows, ([2], [0], [count]), [], kernels))
    assert inputs(step) is not first
    check(inputs(step), step, rows, kernels)
    assert first.row_starts.tolist() == [0, 1]


def test_shapes_that_take_turns(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    """As steps with drafts of different lengths do: each has its own tensors, with its own numbers."""
    steps = [step_of(rows, ([0], [300 - count], [count]), [], kernels) for count in (1, 5, 3)]
    batches = [inputs(step) for step in steps]
    for step, batch in zip(steps, batches, strict=True):
        assert inputs(step) is batch
        check(batch, step, rows, kernels)


def test_a_long_prompt_is_not_kept(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    prompt, token = (step_of(rows, ([0], [0], [count]), [], kernels) for count in (KEPT_TOKENS + 1, 1))
    before = inputs(prompt)
    inputs(token)
    assert inputs(prompt) is not before


def test_a_row_that_outgrows_its_plan(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    """Plans for attention have room for a context, and are made anew for a longer one."""
    before = inputs(step_of(rows, ([0], [255], [1]), [], kernels))
    step = step_of(rows, ([0], [256], [1]), [], kernels)
    after = inputs(step)
    assert after is not before
    check(after, step, rows, kernels)


def test_long_rows_are_split(inputs: BlockInputs, rows: RowTable, kernels: BlockKernels):
    """Those that decode, where they are much of all work; beside a prompt that is more, they are not."""
    before = kernels.team.threads
    kernels.team.set_threads(2)
    rows.add(new_row(5, list(range(600)), list(range(38)), prompt_len=598))
    alone = step_of(rows, ([5, 1], [599, 2], [1, 1]), [], kernels)
    batch = inputs(alone)
    check(batch, alone, rows, kernels)
    plan = plan_of(batch, SPECS[0])
    assert plan.items[:, 5].tolist() == [0, 1, -1]
    rows.append(np.array([5]), np.array([7]))
    following = step_of(rows, ([5, 1], [600, 2], [1, 1]), [], kernels)
    assert inputs(following) is batch
    check(batch, following, rows, kernels)
    several = step_of(rows, ([5], [594], [7]), [], kernels)
    batch = inputs(several)
    check(batch, several, rows, kernels)
    parts = plan_of(batch, SPECS[0]).items[:, 5]
    assert len(parts) > 2 and parts.tolist() == sorted(parts.tolist()), "items of a part are neighbours"
    beside = step_of(rows, ([5, 4, 2], [600, 0, 0], [1, 90, 40]), [], kernels)
    batch = inputs(beside)
    check(batch, beside, rows, kernels)
    plan = plan_of(batch, SPECS[0])
    assert not len(plan.partials)
    kernels.team.set_threads(before)


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_a_common_prefix(seed: int):
    """The same rows share an item as in the reference, beside prompts, in any order of rows."""
    rng = np.random.default_rng(seed)
    kernels = block_kernels(torch.bfloat16, 16, 64, group=3)
    assert kernels is not None
    before = kernels.team.threads
    kernels.team.set_threads(1 + seed % 3)
    rows, lengths = RowTable(60, 700, 1000, 16, 4000), rng.integers(70, 650, 60).tolist()
    for row, length in enumerate(lengths):
        shared, prefix = int(rng.integers(0, length // 16)), 1000 * int(rng.integers(1, 3))
        own = [50 * row + block for block in range(-(-length // 16) - shared)]
        blocks = [*range(prefix, prefix + shared), *own]
        rows.add(new_row(row, list(range(length)), blocks, prompt_len=length))
    inputs = inputs_of(rows, [WIDE], kernels)
    order = rng.permutation(60).tolist()
    counts = [1 if row % 7 else 30 for row in order]
    starts = [lengths[row] - count for row, count in zip(order, counts, strict=True)]
    for chosen in (order, order[:10], order[::-1], order):
        number = [order.index(row) for row in chosen]
        work = chosen, [starts[at] for at in number], [counts[at] for at in number]
        step = step_of(rows, work, [], kernels)
        plan = plan_of(inputs(step), WIDE)
        reference = plan_blocks(kernels, step.starts, step.counts, rows.blocks[step.rows], None, 64, 2)
        assert _pairs_of(plan) == _pairs_of(reference)
        assert len(chosen) < 60 or len(plan.items) > plan.made[0]
    kernels.team.set_threads(before)


def test_another_number_of_items_is_another_batch(kernels: BlockKernels):
    """A program that holds the addresses of a batch then writes them again. Five rows and seven
    are five pairs, until the five have come to the second part of 512 positions too."""
    kernels = replace(kernels, joins=True)
    before = kernels.team.threads
    kernels.team.set_threads(1)
    rows = RowTable(12, 700, 1000, 16, 4000)
    lengths = [511] * 5 + [516] * 7
    for row, length in enumerate(lengths):
        blocks = [*range(30), *range(100 * row + 100, 100 * row + 104)]
        rows.add(new_row(row, list(range(length)), blocks, prompt_len=length))
    inputs = inputs_of(rows, [WIDE], kernels)
    batches, made = [], []
    for _ in range(4):
        starts = [length - 1 for length in lengths]
        batches.append(inputs(step_of(rows, (list(range(12)), starts, [1] * 12), [], kernels)))
        plan = plan_of(batches[-1], WIDE)
        made.append(int(plan.made[0]))
        rows.append(np.arange(12), np.full(12, 7))
        lengths = [length + 1 for length in lengths]
    kernels.team.set_threads(before)
    assert made == [7, 7, 6, 6]
    assert [one is other for one, other in pairwise(batches)] == [True, False, True]


def _pairs_of(plan: BlockPlan) -> list[tuple[int, ...]]:
    """Items beside their company, and how much they share with it."""
    first, size = plan.items.ctypes.data, plan.items.strides[0]
    found = []
    for item in plan.items[: int(plan.made[0])].tolist():
        company = plan.items[(item[7] - first) // size].tolist() if item[7] else [0] * 9
        found.append((item[0], *item[2:7], company[0], *company[2:7], company[8]))
    return sorted(found)
