"""Room for drafts: only where the worker would draft, within the bounds, and never with a plan behind it."""

import pytest

from engine_core.counters import Counters
from engine_core.scheduler.outputs.outputs import encode_outputs
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire_replay.summary import Figures
from tests.engine_core.world import World

ENDLESS = {"max_tokens": 60, "ignore_eos": True}


def start(world: World, requests: int, **options: object) -> World:
    """Adds requests of 3 tokens and computes their prompts."""
    for handle in range(1, requests + 1):
        world.add(handle, 3, **(ENDLESS | options))
    world.step()
    return world


def test_no_room_where_the_worker_has_no_draft():
    world = World(samples_per_row=4)
    world.worker.num_drafts = 0
    start(world, 2)
    assert not any(world.step().sample_counts for _ in range(5))
    world.worker.num_drafts = 2
    world.step()
    assert world.step().sample_counts == [3, 3]
    world.finish()


def test_steps_without_drafts_are_planned_ahead():
    world = World(samples_per_row=4)
    world.worker.num_drafts = 0
    start(world, 1)
    scheduler, worker = world.scheduler, world.worker
    for _ in range(2):
        worker.submit(scheduler.schedule(0.0))
    assert len(scheduler.in_flight) == 2 and not worker.plans[-1].sample_counts


def test_no_plan_is_made_behind_one_with_drafts():
    """Neither for rows without drafts nor for requests that wait."""
    world = start(World(samples_per_row=4), 2, max_draft_tokens=3)
    world.add(3, 3, **ENDLESS)
    world.worker.submit(world.scheduler.schedule(0.0))
    world.add(4, 3, **ENDLESS)
    assert not world.scheduler.schedule(0.0).rows
    world.scheduler.update(world.worker.collect())
    assert len(world.scheduler.schedule(0.0).rows) == 4


def test_two_steps_behind_an_accepted_draft_are_awaited():
    world = start(World(samples_per_row=4), 1)
    scheduler, worker = world.scheduler, world.worker
    worker.num_drafts = 0
    worker.submit(scheduler.schedule(0.0))
    accepted = worker.collect()
    assert len(accepted.token_ids) > 1
    scheduler.update(accepted)
    for _ in range(2):
        worker.submit(scheduler.schedule(0.0))
        assert not worker.plans[-1].sample_counts and not scheduler.schedule(0.0).rows
        scheduler.update(worker.collect())
    for _ in range(2):
        worker.submit(scheduler.schedule(0.0))
    assert len(scheduler.in_flight) == 2
    while scheduler.in_flight:
        scheduler.update(worker.collect())


@pytest.mark.parametrize(
    ("requests", "expected"),
    [(1, [8]), (2, [6, 6]), (3, [4, 4, 4]), (5, [3, 3, 2, 2, 2]), (11, [2] + 10 * [1]), (12, []), (16, [])],
)
def test_more_rows_get_shorter_drafts_or_none(requests: int, expected: list[int]):
    world = World(samples_per_row=8, speculative_tokens_per_step=12, rows=16, blocks=200)
    assert start(world, requests).step().sample_counts == expected
    world.finish()


def test_a_prompt_that_is_being_computed_keeps_a_token_of_the_budget():
    world = World(samples_per_row=9, budget=6)
    world.add(1, 3, **ENDLESS)
    world.step()
    world.add(2, 40, **ENDLESS)
    world.worker.num_drafts = 0
    world.step()
    world.worker.num_drafts = 99
    world.step()
    plan = world.step()
    assert len(plan.rows) == 2 and plan.counts == [5, 1]
    world.finish()


def test_outputs_say_what_was_drafted():
    world = start(World(samples_per_row=4), 1)
    scheduler, worker = world.scheduler, world.worker
    scheduler.take_outputs()
    worker.submit(scheduler.schedule(0.0))
    result = worker.collect()._replace(draft_counts=[3])
    scheduler.update(result)
    outputs = scheduler.take_outputs()
    ((_, message),) = encode_outputs(outputs, epoch=1, step=2)
    assert unpack_u32(message.draft_counts) == [3] and unpack_u32(message.counts) == [len(result.token_ids)]
    figures = Figures()
    result = result._replace(draft_methods=bytes([engine_pb2.DRAFT_METHOD_GRAMMAR]))
    figures.add_result(result)
    accepted = len(result.token_ids) - 1
    assert figures.num_draft_tokens == {"grammar": 3} and figures.num_accepted_drafts == {"grammar": accepted}
    counters = Counters()
    counters.step_done(result)
    assert counters.draft_tokens == {
        ("grammar", "accepted"): accepted,
        ("grammar", "refused"): 3 - accepted,
    }
    positions = {(str(at), "accepted" if at <= accepted else "refused"): 1 for at in (1, 2, 3)}
    assert counters.draft_positions == positions


def test_a_request_may_want_shorter_drafts_or_none():
    world = World(samples_per_row=6)
    for handle, most in ((1, 2), (2, 0), (3, 99)):
        world.add(handle, 3, max_draft_tokens=most, **ENDLESS)
    world.step()
    assert world.step().sample_counts == [3, 1, 6]
    world.finish()
    alone = start(World(samples_per_row=6), 1, max_draft_tokens=0)
    assert not alone.step().sample_counts
    alone.finish()
