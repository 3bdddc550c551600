"""The states of rows: a row goes on where it has stopped, and its tokens have one state wherever it is copied
from."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.scheduler.scheduler import Scheduler
from kernels.attention.kv_cache_spec import RowStateSpec
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape
from kernels.ops.states.spans import Spans
from pagewire.errors import StartupError
from pagewire.ipc.columns import pack_u32
from tests.engine_core.fakes import add_request
from tests.worker import test_beam_parity as beams
from tests.worker import test_pressure
from tests.worker.fakes import Driver, initialize, load_on_a_cpu
from worker.memory import row_states
from worker.memory.row_states import RowStates, states_bytes
from worker.step.plan_reader import Measures, Step
from worker.step.rows import PlanError
from worker.step.warmup_plans import decode_plan, prefill_plan, removal_plan

SPEC = RowStateSpec(DeltaShape(1, 2, 3, 5), 4)


def test_bytes(monkeypatch: pytest.MonkeyPatch):
    """Of a convolution's last tokens and of two heads, float32; more than the machine has is refused."""
    assert SPEC.bytes_per_row() == 4 * (3 * (2 * 3 + 2 * 5) + 2 * 3 * 5)
    states = RowStates([SPEC, SPEC], 7, torch.device("cpu"), 3)
    assert states.num_bytes == states_bytes([SPEC, SPEC], 7, 3) == 20 * SPEC.bytes_per_row()
    assert SPEC.bytes_per_row(5) - SPEC.bytes_per_row() == 4 * 5 * (2 * 3 + 2 * 5 + 2 * 3 * 16)
    drafting = RowStates([SPEC], 7, torch.device("cpu"), 3, 5)
    assert (
        drafting.num_bytes
        == states_bytes([SPEC], 7, 3, 5)
        == 7 * SPEC.bytes_per_row(5) + 3 * SPEC.bytes_per_row()
    )
    mamba = RowStateSpec(MambaShape(2, 5, 1, 3), 4)
    assert mamba.bytes_per_row() == 4 * (3 * (2 * 5 + 2 * 3) + 2 * 3 * 5)
    monkeypatch.setattr(row_states, "available_memory", lambda: 2 << 20)
    with pytest.raises(
        StartupError, match="those of 4096 rows and 0 checkpoints take 1 MiB, but 2 MiB are available"
    ) as error:
        states_bytes([SPEC], 4096)
    assert "--max-num-seqs" in error.value.todo


def test_drafted_tokens_are_not_in_a_state():
    """A row goes on behind those that were accepted, and no more are drafted than can be kept; a row that
    forks has the same to do first."""

    def step(row: int, start: int, count: int, drafted: int) -> Step:
        columns = [np.array([value], np.int64) for value in (row, start, count, row, 0, 1 + drafted)]
        return Step(*columns[:5], 0, Measures(count, 0, False), columns[5])

    states = RowStates([SPEC], 3, torch.device("cpu"), drafts=4)
    for tensor in states.tensors:
        tensor.uniform_()
    with pytest.raises(PlanError, match="more is drafted"):
        states.check(step(1, 0, 6, 5))
    first = step(1, 0, 6, 4)
    states.check(first)
    states.finish(first)
    states.accept(np.array([1]), np.array([3]))
    states.fork_row(2, 1, 0)
    for row in (1, 2):
        with pytest.raises(PlanError, match="where its states have stopped"):
            states.check(step(row, 2, 1, 0))
        states.check(step(row, 5, 3, 2))
        spans = Spans.empty(1)
        spans.write(*(np.array([value]) for value in (row, 5, 3)))
        states.mark(spans)
        (span,) = spans
        assert (span.replayed, span.certain) == (3, 1)
    assert all(torch.equal(tensor[1], tensor[2]) for tensor in states.tensors)


def test_a_plan_that_leaves_out_tokens(checkpoint: Callable[..., Path]):
    """Or computes some again: the state holds them."""
    runner, ready = load_on_a_cpu(initialize(checkpoint("qwen3_5")))
    assert ready.has_states and not ready.num_host_blocks
    first = prefill_plan([3], runner.rows.block_size)
    runner.execute(first)
    for position in (2, 0):
        plan = decode_plan([position])
        plan.sample_rows = plan.sample_sources = b""
        with pytest.raises(PlanError, match="where its states have stopped"):
            runner.execute(plan)


def test_a_removed_row_leaves_nothing(checkpoint: Callable[..., Path]):
    """The next sequence of a row begins with zeros."""
    folder = checkpoint("qwen3_5")
    prompt, fresh = list(range(3, 20)), Driver(folder, max_num_seqs=1)
    alone = fresh.add(prompt, 4)[0]
    fresh.run()
    used = Driver(folder, max_num_seqs=1)
    used.add(list(range(40, 60)), 5)
    used.run()
    after = used.add(prompt, 4)[0]
    used.run()
    assert after.output == alone.output
    assert all(map(torch.equal, after.logits, alone.logits))


def test_removal_and_a_new_row_in_one_plan(checkpoint: Callable[..., Path]):
    """As the core sends it when a row is preempted."""
    runner, _ = load_on_a_cpu(initialize(checkpoint("qwen3_5")))
    first = prefill_plan([5], runner.rows.block_size)
    expected = runner.execute(first).token_ids
    again = prefill_plan([5], runner.rows.block_size)
    again.removed_rows = removal_plan(first).removed_rows
    assert runner.execute(again).token_ids == expected


def test_rows_are_computed_again(checkpoint: Callable[..., Path]):
    """In a pool that is too small: forks take the state of the prompt, preempted rows begin with none, and a
    swap space is not made."""
    folder, messages = checkpoint("qwen3_5"), test_pressure.load_of_ten_pools(6)
    engine = test_pressure.InProcess(folder, blocks=200, swap_costs=None, prefix_cache=False)
    expected = {key: tokens for each in messages for key, tokens in engine.outputs([each]).items()}
    costs = SwapCosts(1.0, 0.0)
    crowded = test_pressure.InProcess(folder, blocks=16, swap_costs=costs, prefix_cache=False)
    assert crowded.outputs(messages, ahead=True) == expected
    assert crowded.scheduler.num_preemptions > 2 and not crowded.scheduler.swap.num_blocks


@pytest.mark.parametrize("family", ["qwen3_5", "granite_hybrid", "falcon_h1"])
def test_prompts_that_share_their_beginnings(family: str, checkpoint: Callable[..., Path]):
    """They begin with states that others have saved, and get what they get alone."""
    folder, base = checkpoint(family), [3 + 7 * i % 300 for i in range(40)]
    draw = random.Random(1)
    messages = [
        add_request(handle, base[: draw.choice([9, 21, 33])] + [handle, 5], n=1 + handle % 2, max_tokens=6)
        for handle in range(1, 15)
    ]
    engine = test_pressure.InProcess(folder, blocks=200, swap_costs=None, prefix_cache=False)
    expected = {key: tokens for each in messages for key, tokens in engine.outputs([each]).items()}
    crowded = test_pressure.InProcess(
        folder, blocks=40, swap_costs=None, prefix_cache=True, state_checkpoints=3
    )
    assert crowded.outputs(messages, ahead=True) == expected
    assert crowded.outputs(messages[:4]) == {key: expected[key] for key in expected if key[0] <= 4}
    assert crowded.scheduler.prefix_cache.hit_rate.num_found > 60


def test_a_plan_with_checkpoints_that_do_not_fit(checkpoint: Callable[..., Path]):
    """What was not saved, or is out of range, or is of no token that the plan computes."""
    runner, ready = load_on_a_cpu(initialize(checkpoint("qwen3_5"), state_checkpoints=2))
    assert ready.num_state_checkpoints == 2
    cases: list[tuple[dict[str, list[int]], str]] = [
        ({"restore_rows": [0], "restore_checkpoints": [1]}, "was not saved"),
        ({"restore_rows": [0], "restore_checkpoints": [2]}, "a checkpoint is out of range"),
        ({"restore_rows": [24], "restore_checkpoints": [0]}, "a state is of no row"),
        ({"restore_rows": [0, 0], "restore_checkpoints": [0]}, "differ in length"),
        ({"restore_rows": [0], "restore_checkpoints": []}, "differ in length"),
        ({"restore_rows": [], "restore_checkpoints": [0]}, "differ in length"),
        ({"save_rows": [], "save_checkpoints": [0], "save_positions": []}, "differ in length"),
        ({"save_rows": [0], "save_checkpoints": [0], "save_positions": []}, "differ in length"),
        ({"save_rows": [0, 0], "save_checkpoints": [0, 0], "save_positions": [1, 2]}, "in one place"),
        ({"save_rows": [0], "save_checkpoints": [0], "save_positions": [4]}, "behind no token"),
        ({"save_rows": [1], "save_checkpoints": [0], "save_positions": [1]}, "does not compute"),
    ]
    for columns, message in cases:
        plan = prefill_plan([3], runner.rows.block_size)
        for name, values in columns.items():
            setattr(plan, name, pack_u32(values))
        with pytest.raises(PlanError, match=message):
            runner.execute(plan)
        runner.execute(removal_plan(plan))


def test_beams_take_their_states_along(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """A search that is preempted beside others finds what it finds in a roomy pool, and what transformers
    finds."""
    monkeypatch.setattr(beams, "Scheduler", partial(Scheduler, prefix_cache=False))
    folder, case = checkpoint("qwen3_5"), beams.CASES["many ends"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    messages = [beams.request(handle, beams.prompt(handle), case) for handle in range(1, 5)]
    answers = {
        (handle, index): output
        for handle in range(1, 5)
        for index, output in enumerate(beams.expected(model, beams.prompt(handle), case))
    }
    others = [add_request(handle, beams.prompt(handle), max_tokens=30) for handle in range(100, 106)]
    tight = beams.InProcess(folder, blocks=32, rows=20, budget=24)
    results = tight.results(*messages, *others, ahead=True)
    assert {key: output for key, output in results.items() if key[0] < 100} == answers
    assert tight.scheduler.num_preemptions > 0
