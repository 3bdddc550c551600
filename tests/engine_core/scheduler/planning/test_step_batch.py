"""Batches: one token per decoding row, or several."""

import pytest

from engine_core.request import Status
from tests.engine_core.fakes import run
from tests.engine_core.world import World, columns
from tests.logprob_columns import top

ENDLESS = {"max_tokens": 40, "ignore_eos": True}


def test_one_token_each_needs_no_column():
    world = World()
    world.add(1, **ENDLESS)
    world.step(3)
    assert not any(plan.sample_counts for plan in world.worker.plans)


def test_a_decoding_row_samples_as_many_tokens_as_allowed():
    world = World(samples_per_row=4)
    world.add(1, 5, **ENDLESS)
    prompt = world.step()
    assert columns(prompt) == [(0, 5)] and not prompt.sample_counts
    plan = world.step()
    assert columns(plan) == [(5, 4)] and plan.sample_counts == [4]
    taken = len(world.ledger.tokens[1, 0]) - 1
    assert 1 <= taken <= 4
    assert columns(world.step())[0][0] == 5 + taken, "what was not taken is computed again"
    world.finish()


def test_the_budget_is_shared_out():
    world = World(samples_per_row=4, budget=8, rows=4)
    for handle in (1, 2, 3, 4):
        world.add(handle, 2, **ENDLESS)
    world.step()
    plan = world.step()
    assert sum(plan.counts) == 8 and plan.sample_counts == [2, 2, 2, 2]
    world.finish()


def test_a_prompt_takes_what_decoding_rows_leave():
    world = World(samples_per_row=3, budget=8)
    world.add(1, 3, **ENDLESS)
    world.step()
    world.add(2, 20, **ENDLESS)
    plan = world.step()
    assert plan.counts == [3, 5] and plan.sample_rows == plan.rows[:1] and plan.sample_counts == [3]
    world.finish()


def test_no_row_is_preempted_for_uncertain_tokens():
    """7 blocks of 4: two sequences of 12 tokens hold 6, and have one to spare."""
    world = World(samples_per_row=8, blocks=7, rows=2)
    for handle in (1, 2):
        world.add(handle, 5, max_tokens=8, ignore_eos=True)
    world.finish()
    assert not world.scheduler.num_preemptions


def test_no_row_samples_beyond_its_limit():
    world = World(samples_per_row=8)
    world.add(1, 5, max_tokens=4, ignore_eos=True)
    world.step(2)
    assert world.worker.plans[1].sample_counts == [3]
    world.finish()


def test_a_row_with_several_tokens_pending_sits_out_the_next_plan():
    world = World(samples_per_row=4, ahead=True)
    world.add(1, 5, **ENDLESS)
    world.step()
    scheduler, worker = world.scheduler, world.worker
    worker.submit(scheduler.schedule(0.0))
    assert not scheduler.schedule(0.0).rows
    scheduler.check_invariants()
    scheduler.update(worker.collect())
    assert scheduler.schedule(0.0).sample_counts == [4]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 20])
def test_preemption_with_several_tokens_pending(ahead: bool, host_blocks: int):
    world = World(samples_per_row=3, blocks=10, rows=4, ahead=ahead, host_blocks=host_blocks)
    for handle in (1, 2, 3, 4):
        world.add(handle, 6, max_tokens=20, ignore_eos=True)
    world.finish()
    assert world.scheduler.num_preemptions > 0


def test_siblings_and_log_probabilities_of_several_tokens():
    world = World(samples_per_row=3)
    world.add(1, 5, n=3, logprobs=top(2), max_tokens=12)
    world.add(2, 7, logprobs=top(1), prompt_logprobs=top(1), max_tokens=12)
    world.finish()


def test_tokens_behind_the_last_one_are_not_delivered():
    world = World(samples_per_row=6)
    request = world.add(1, 5, max_tokens=30, stop_token_ids=range(100, 500))
    run(world.scheduler, world.worker, world.ledger)
    assert all(sequence.status is Status.ENDED for sequence in request.sequences)
    world.finish()
