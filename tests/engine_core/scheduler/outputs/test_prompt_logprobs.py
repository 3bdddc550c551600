"""Log-probabilities of prompts and of output on their way through the scheduler, one story each.

The ledger checks that parts come in order, without gap and overlap, before any output; World.finish() that
every value is right.
"""

import pytest

from tests.engine_core.fakes import expected_output, run
from tests.engine_core.world import World, columns
from tests.logprob_columns import listed, top

PROMPT = list(range(100, 123))
"""23 tokens; blocks have 4."""


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [3, 8, 64])
def test_a_prompt_in_chunks(budget: int, ahead: bool) -> None:
    """Beside requests that want something else, or nothing."""
    world = World(budget=budget, ahead=ahead)
    world.add(1, PROMPT, logprobs=top(2), prompt_logprobs=listed(3, 9, 1), prompt_logprobs_start=5)
    world.add(2, PROMPT[:9])
    world.add(3, PROMPT[4:], prompt_logprobs=top(0))
    world.finish()
    assert len(world.ledger.prompt_scores[1]) == 18
    assert len(world.ledger.prompt_scores[3]) == 18


def test_cached_blocks_are_used_as_far_as_they_may_be() -> None:
    """The log-probability of position 11 needs the logits at 10, which is in the third block."""
    world = World()
    world.add(1, PROMPT)
    world.finish()
    for handle, start, found in ((2, 11, 8), (3, 13, 12), (4, 1, 0), (5, 22, 20)):
        world.add(handle, PROMPT, prompt_logprobs=top(1), prompt_logprobs_start=start)
        assert columns(world.step()) == [(found, 23 - found)]
        world.finish()


def test_what_was_computed_for_them_is_known_to_others() -> None:
    world = World()
    world.add(1, PROMPT, prompt_logprobs=top(1))
    world.finish()
    world.add(2, PROMPT)
    assert columns(world.step()) == [(20, 3)]
    world.finish()


def test_a_preempted_request_asks_for_the_rest_alone() -> None:
    """Request 2 is in its prompt when request 1, which is of a better class, needs its third new block."""
    world = World(blocks=9, budget=3)
    world.add(1, PROMPT[:4], max_tokens=20, min_tokens=20)
    world.step(2)
    world.add(2, PROMPT, prompt_logprobs=top(2), priority=1)
    while not world.scheduler.num_preemptions:
        world.step()
    before = len(world.ledger.prompt_scores[2])
    assert 0 < before < 22
    world.finish()
    asked = [new for plan in world.worker.plans for new in plan.new_rows if new.prompt_logprobs]
    assert [new.prompt_logprobs_start for new in asked] == [1, before + 1]


@pytest.mark.parametrize("aborted", [[0], [0, 1]])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_next_leader_goes_on(steps: int, aborted: list[int]) -> None:
    """The leader ends while a part is under way; so much of it as has not come is asked for again, and what
    comes twice is told once."""
    world = World(budget=8, ahead=True)
    request = world.add(1, PROMPT, n=3, logprobs=top(1), prompt_logprobs=top(1))
    scheduler, worker = world.scheduler, world.worker
    for _ in range(steps):
        worker.submit(scheduler.schedule(0.0))
        if len(scheduler.in_flight) > 1:
            scheduler.update(worker.collect())
    scheduler.abort(request, aborted)
    run(scheduler, worker, world.ledger, ahead=True)
    world.assert_empty()
    for index in {0, 1, 2} - {*aborted}:
        assert world.ledger.tokens[1, index] == expected_output(world.messages[1], index)[0]
        world.ledger.check_scores(world.messages[1], index)


def test_nothing_is_told_of_a_request_that_is_gone() -> None:
    world = World(budget=8)
    request = world.add(1, PROMPT, prompt_logprobs=top(1), logprobs=top(1))
    world.add(2, PROMPT[:3], logprobs=top(1))
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    world.scheduler.abort(request)
    world.scheduler.update(world.worker.collect())
    outputs = world.scheduler.take_outputs()
    assert not outputs.prompt_parts and not outputs.scores
    assert not outputs.sequences


def test_requests_that_want_none_cost_nothing() -> None:
    world = World()
    world.add(1, PROMPT)
    plan = world.scheduler.schedule(0.0)
    assert not world.scheduler.in_flight[-1].prompts
    assert plan.new_rows[0].prompt_logprobs is None
