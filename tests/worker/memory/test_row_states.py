"""The states of rows: a row goes on where it has stopped, and its tokens have one state wherever it is copied
from."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.scheduler.scheduler import Scheduler
from kernels.ops.delta.delta_rule import DeltaShape
from pagewire.errors import StartupError
from tests.engine_core.fakes import add_request
from tests.worker import test_beam_parity as beams
from tests.worker import test_pressure
from tests.worker.fakes import Driver, initialize, load_on_a_cpu
from worker.attention.row_state import DeltaStateSpec
from worker.memory import row_states
from worker.memory.row_states import RowStates, states_bytes
from worker.step.rows import PlanError
from worker.step.warmup_plans import decode_plan, prefill_plan, removal_plan

SPEC = DeltaStateSpec(DeltaShape(1, 2, 3, 5), 4)


def test_bytes(monkeypatch: pytest.MonkeyPatch):
    """Of a convolution's last tokens and of two heads, float32; more than the machine has is refused."""
    assert SPEC.bytes_per_row == 4 * (3 * (2 * 3 + 2 * 5) + 2 * 3 * 5)
    assert RowStates([SPEC, SPEC], 7, torch.device("cpu")).num_bytes == states_bytes([SPEC, SPEC], 7)
    monkeypatch.setattr(row_states, "available_memory", lambda: 2 << 20)
    with pytest.raises(StartupError, match="those of 4096 rows take 1 MiB, but 2 MiB are available") as error:
        states_bytes([SPEC], 4096)
    assert "--max-num-seqs" in error.value.todo


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
