"""Steps with the real sampler: forks, resumed rows, padding, plans that do not fit."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_f32, unpack_u32
from tests.worker.fakes import Driver, make_runner, resolved_params
from worker.step.plan_reader import NO_TOKEN_COLUMN
from worker.step.rows import PlanError

PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250]
Checkpoints = Callable[..., Path]


def test_forks_share_the_prompt_and_go_their_own_ways(checkpoint: Checkpoints):
    """n sequences of one prompt give what each gives as a row of its own; the partial last block is
    copied before it is written (10 tokens, blocks of 4)."""
    folder = checkpoint("llama")
    params = resolved_params(temperature=1.5, seed=77, n=3)
    together = Driver(folder, record=False)
    siblings = together.add(PROMPT, 9, params, n=3)
    plans = [together.step()]
    while together.running:
        plans.append(together.step())
    assert len(plans[0].forks) == 2
    assert unpack_u32(plans[0].sample_sources) == [0, 0, 0]
    assert len(plans[1].copy_sources) == 2 * 4
    assert len({tuple(sequence.output) for sequence in siblings}) == 3
    assert len(together.free) == together.ready.num_blocks
    for index in range(3):
        alone = Driver(folder, record=False, budget=3, shuffle=index)
        sequence = alone.add(PROMPT, 9, params)[0]
        sequence.index = index
        alone.run()
        assert sequence.output == siblings[index].output


def test_a_resumed_row_goes_on_where_it_was(checkpoint: Checkpoints):
    """Output that comes back with the row is output: positions of random numbers, penalties, rotary
    positions (dynamic ones depend on where the prompt ends)."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = checkpoint("llama", rope_parameters=rope, max_position_embeddings=12)
    params = resolved_params(temperature=1.0, seed=5, repetition_penalty=1.3)
    whole, resumed = Driver(folder, record=False), Driver(folder, record=False, budget=4)
    expected = whole.add(PROMPT, 14, params)[0]
    whole.run()
    sequence = resumed.add(PROMPT, 14, params, delivered=expected.output[:6])[0]
    resumed.run()
    assert sequence.output == expected.output


def test_sampled_tokens_do_not_depend_on_company(checkpoint: Checkpoints):
    folder = checkpoint("qwen2")
    params = resolved_params(temperature=1.0, top_p=0.9, seed=123)
    alone = Driver(folder, record=False)
    expected = alone.add(PROMPT, 12, params)[0]
    alone.run()
    for budget in (4096, 21):
        crowd = Driver(folder, record=False, budget=budget)
        for seed in range(8):
            crowd.add([seed + 3] * (seed + 1), 12, resolved_params(temperature=1.0, seed=seed))
        sequence = crowd.add(PROMPT, 12, params)[0]
        crowd.run()
        assert sequence.output == expected.output


def test_a_result_says_when_its_step_began(checkpoint: Checkpoints):
    """On the clock by which the core judges whether the worker had to wait for a plan."""
    driver = Driver(checkpoint("llama"), record=False)
    before = time.monotonic_ns()
    result = driver.runner.execute(worker_pb2.StepPlan(step=3))
    end = result.started_ns + 1000 * result.duration_us
    assert result.step == 3 and before <= result.started_ns <= end <= time.monotonic_ns()


def test_a_row_without_a_token(checkpoint: Checkpoints):
    """When a row's logits are NaN, it alone gets no token."""
    runner = make_runner(checkpoint("llama"))
    real = runner.backend.model.logits
    runner.backend.model.logits = lambda hidden, adapters: real(hidden).index_fill_(
        0, torch.tensor([1]), torch.nan
    )  # type: ignore[method-assign]
    new_rows = [
        worker_pb2.NewRow(
            row=row,
            token_ids=pack_u32([row + 1]),
            prompt_len=1,
            blocks=pack_u32([row]),
            sampling=resolved_params(),
        )
        for row in range(2)
    ]
    columns = {
        "rows": [0, 1],
        "starts": [0, 0],
        "counts": [1, 1],
        "sample_rows": [0, 1],
        "sample_sources": [0, 1],
    }
    packed = {name: pack_u32(values) for name, values in columns.items()}
    result = runner.execute(worker_pb2.StepPlan(step=4, new_rows=new_rows, **packed))  # type: ignore[arg-type]
    first, second = unpack_u32(result.token_ids)
    assert first < 320
    assert second == NO_TOKEN_COLUMN
    assert result.step == 4
    runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0, 1])))


def test_a_step_may_only_change_things(checkpoint: Checkpoints):
    driver = Driver(checkpoint("llama"), record=False)
    sequence = driver.add(PROMPT, 50)[0]
    driver.step()
    driver.remove(sequence)
    plan = driver.step()
    assert unpack_u32(plan.removed_rows) == [sequence.row]
    assert not plan.rows
    result = driver.runner.execute(worker_pb2.StepPlan(step=9))
    assert (result.step, result.token_ids) == (9, b"")


BAD_PLANS = {
    "does not have": {"rows": [3], "starts": [0], "counts": [1]},
    "max_num_batched_tokens": {"rows": [0], "starts": [0], "counts": [9]},
    "copied block": {"copy_sources": [0], "copy_targets": [600]},
    "copy_sources and copy_targets": {"copy_sources": [0], "copy_targets": []},
    "is not in use": {"removed_rows": [2]},
    "differ in length": {"rows": [0], "starts": [0, 1], "counts": [1]},
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_plans_that_do_not_fit(message: str, checkpoint: Checkpoints):
    runner = make_runner(checkpoint("llama"), max_num_batched_tokens=8)
    new = worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32(PROMPT),
        prompt_len=10,
        blocks=pack_u32([0, 1, 2]),
        sampling=resolved_params(),
    )
    packed = {name: pack_u32(values) for name, values in BAD_PLANS[message].items()}
    with pytest.raises(PlanError, match=message):
        runner.execute(worker_pb2.StepPlan(new_rows=[new], **packed))  # type: ignore[arg-type]


def test_a_beam_offers_and_gets_what_the_core_has_chosen(checkpoint: Checkpoints):
    """Its offers are log-probabilities of the model; the chosen token is penalized from then on, in the
    row and in its forks. A beam whose logits are NaN is told apart."""
    folder = checkpoint("llama")
    runner = make_runner(folder)
    new = worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32(PROMPT),
        prompt_len=10,
        blocks=pack_u32([0, 1, 2]),
        sampling=resolved_params(presence_penalty=2.0),
        num_beam_candidates=320,
    )
    one = {"rows": [0], "counts": [10], "starts": [0], "sample_rows": [0], "sample_sources": [0]}
    result = runner.execute(
        worker_pb2.StepPlan(new_rows=[new], **{name: pack_u32(column) for name, column in one.items()})
    )
    assert unpack_u32(result.token_ids) == [0]
    first = dict(zip(unpack_u32(result.beam_token_ids), unpack_f32(result.beam_logprobs), strict=True))
    assert list(first.values()) == sorted(first.values(), reverse=True)
    assert sum(map(math.exp, first.values())) == pytest.approx(1, abs=1e-5)
    real = runner.backend.model.logits
    seen: list[torch.Tensor] = []

    def logits(hidden: torch.Tensor, adapters: object) -> torch.Tensor:
        seen.append(real(hidden).clone())
        return seen[-1].index_fill(0, torch.tensor([1]), torch.nan)

    runner.backend.model.logits = logits  # type: ignore[method-assign]
    two = {
        "append_rows": [0, 1],
        "append_token_ids": [50, 60],
        "table_rows": [1],
        "table_starts": [2],
        "table_counts": [1],
        "table_blocks": [3],
        "copy_sources": [2],
        "copy_targets": [3],
        "rows": [0, 1],
        "starts": [10, 10],
        "counts": [1, 1],
        "sample_rows": [0, 1],
        "sample_sources": [0, 1],
    }
    fork = worker_pb2.ForkRow(row=1, source_row=0, sequence_index=1)
    result = runner.execute(
        worker_pb2.StepPlan(forks=[fork], **{name: pack_u32(column) for name, column in two.items()})
    )
    assert unpack_u32(result.token_ids) == [0, NO_TOKEN_COLUMN]
    offers = dict(
        zip(unpack_u32(result.beam_token_ids)[:320], unpack_f32(result.beam_logprobs), strict=False)
    )
    raw = seen[0][0].log_softmax(-1)
    assert offers[50] == pytest.approx(raw[50].item() - 2, abs=1e-5)
    assert offers[60] == pytest.approx(raw[60].item(), abs=1e-5)
