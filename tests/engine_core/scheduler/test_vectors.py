"""Requests that pool on their way through the scheduler.

The worker checks that the states of a mean are read from the first token to the last, World.finish() that
every vector is right, comes once, and leaves nothing behind.
"""

import pytest

from engine_core.errors import InvariantError
from engine_core.request import NO_TOKEN
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MEAN,
    Pooling,
)
from pagewire.ipc.transport import MAX_MESSAGE_BYTES
from pagewire.limits import MAX_STEP_VECTOR_VALUES, MAX_VECTOR_VALUES
from tests.engine_core.world import World, columns

PROMPT = list(range(100, 123))
"""23 tokens; blocks have 4."""
LAST, MEAN = Pooling(type=POOLING_TYPE_LAST), Pooling(type=POOLING_TYPE_MEAN)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [3, 8, 64])
def test_prompts_in_chunks_beside_others(budget: int, ahead: bool):
    world = World(budget=budget, ahead=ahead, rows=3)
    world.add(1, PROMPT, pooling=LAST)
    world.add(2, PROMPT[:9], max_tokens=9)
    world.add(3, PROMPT[4:], pooling=MEAN)
    world.add(4, PROMPT, n=2)
    world.add(5, PROMPT[:1], pooling=Pooling(type=POOLING_TYPE_MEAN, dimensions=2))
    world.finish()
    assert not world.ledger.tokens[1, 0] and len(world.ledger.vectors) == 3


def test_it_takes_one_step_and_frees_its_row_and_blocks_with_the_result():
    world = World()
    world.add(1, PROMPT, pooling=LAST)
    plan = world.step()
    assert columns(plan) == [(0, 23)] and len(plan.sample_rows) == 1
    world.assert_empty()


def test_the_last_token_uses_cached_blocks_and_the_mean_none():
    world = World()
    world.add(1, PROMPT, pooling=MEAN)
    world.finish()
    for handle, pooling, start in ((2, LAST, 20), (3, MEAN, 0), (4, None, 20)):
        world.add(handle, PROMPT, pooling=pooling)
        assert columns(world.step())[0] == (start, 23 - start)
        world.finish()


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_a_preempted_request_begins_again(pooling: Pooling):
    """It is in its prompt when request 1, of a better class, needs its blocks; a swap space keeps nothing."""
    world = World(blocks=8, budget=3, host_blocks=8)
    world.add(1, PROMPT[:4], max_tokens=20, min_tokens=20)
    world.step(2)
    world.add(2, PROMPT[4:], pooling=pooling, priority=1)
    while not world.scheduler.num_preemptions:
        world.step()
    assert not world.scheduler.swap.num_copies
    world.finish()


def test_drafts_of_other_rows_in_its_step():
    world = World(samples_per_row=4, speculative_tokens_per_step=16, budget=16)
    world.add(1, PROMPT[:5], max_tokens=30, min_tokens=30)
    world.step(3)
    world.add(2, PROMPT, pooling=MEAN)
    world.add(3, PROMPT, pooling=LAST)
    world.finish()
    assert any(plan.sample_counts and plan.new_rows for plan in world.worker.plans)


def test_a_vector_of_an_aborted_request_is_dropped():
    world = World()
    request = world.add(1, PROMPT, pooling=LAST)
    world.worker.submit(world.scheduler.schedule(0.0))
    world.scheduler.abort(request)
    assert not world.scheduler.update(world.worker.collect())
    outputs = world.scheduler.take_outputs()
    assert not outputs.vectors and not outputs.sequences


def test_a_vector_that_is_not_finite_fails_the_request():
    world = World()
    request, other = world.add(1, PROMPT, pooling=LAST), world.add(2, PROMPT[:7])
    world.worker.submit(world.scheduler.schedule(0.0))
    result = world.worker.collect()
    broken = result._replace(token_ids=[NO_TOKEN, *result.token_ids[1:]], vectors={})
    assert world.scheduler.update(broken) == [request]
    assert other.num_live and not world.scheduler.take_outputs().vectors


def test_invariants_hold_while_a_vector_is_pending():
    world = World(ahead=True)
    world.add(1, PROMPT, pooling=LAST)
    world.scheduler.schedule(0.0)
    try:
        world.scheduler.check_invariants()
    except InvariantError as error:
        pytest.fail(str(error))
    assert not world.scheduler.schedule(0.0).rows


@pytest.mark.parametrize("ahead", [False, True])
def test_vectors_of_a_step_fit_into_a_message(ahead: bool, monkeypatch: pytest.MonkeyPatch):
    """Of two requests with vectors of all tokens, 64 and 32 values, one begins in a step; small ones fit
    beside it, and those that make tokens have none."""
    monkeypatch.setattr("engine_core.scheduler.planning.step_planner.MAX_STEP_VECTOR_VALUES", 80)
    world = World(ahead=ahead, prefix_cache=False)
    tokens = Pooling(type=POOLING_TYPE_ALL)
    for handle, (length, pooling) in enumerate(
        ((16, tokens), (4, tokens), (5, None), (8, tokens), (3, MEAN), (9, MEAN), (1, MEAN)), start=1
    ):
        world.add(handle, PROMPT[:length], pooling=pooling)
    world.finish()
    sizes = {16: 64, 4: 16, 8: 32, 3: 4, 9: 4, 1: 4}
    began = [[len(row.token_ids) for row in plan.new_rows] for plan in world.worker.plans if plan.new_rows]
    assert began == [[16, 4, 5], [8, 3, 9, 1]]
    assert all(sum(sizes.get(length, 0) for length in lengths) <= 80 for lengths in began)


def test_the_largest_vectors_of_a_step_fit_into_a_message():
    """Those of requests that begin in it, and of one whose prompt began before."""
    assert 4 * (MAX_STEP_VECTOR_VALUES + MAX_VECTOR_VALUES) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize("ahead", [False, True])
def test_whole_prompts(ahead: bool):
    """Each is in one step, in order of arrival; the one that does not fit has the next step for itself."""
    world = World(budget=24, ahead=ahead, prefix_cache=False, whole_prompts=True)
    lengths = (9, 23, 1, 14, 10, 9, 9, 9)
    for handle, length in enumerate(lengths, start=1):
        world.add(handle, PROMPT[:length], pooling=MEAN)
    world.finish()
    expected = [[9], [23, 1], [14, 10], [9, 9], [9]]
    assert [columns(plan) for plan in world.worker.plans] == [
        [(0, count) for count in counts] for counts in expected
    ]


def test_a_whole_prompt_that_is_preempted_has_its_vector_all_the_same():
    """It is preempted after the plan that computes all of it."""
    world = World(budget=24, rows=1, prefix_cache=False, whole_prompts=True, preempt_rows=True)
    world.add(1, PROMPT, pooling=MEAN, priority=1)
    world.worker.submit(world.scheduler.schedule(0.0))
    world.add(2, PROMPT[:3], pooling=MEAN)
    assert not world.scheduler.schedule(0.0).rows and world.scheduler.num_preemptions == 1
    world.scheduler.update(world.worker.collect())
    world.finish()
    assert [columns(plan) for plan in world.worker.plans] == [[(0, 23)], [(0, 3)]]


def test_rows_in_parts_are_refused_where_prompts_are_whole():
    for settings in ({"prefix_cache": True}, {"prefix_cache": False, "host_blocks": 4}):
        with pytest.raises(AssertionError, match="in parts"):
            World(whole_prompts=True, **settings)
