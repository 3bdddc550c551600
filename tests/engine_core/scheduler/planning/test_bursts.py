"""Bursts: several steps in a plan for rows that decode while nothing waits, in time, slots and limits."""

from dataclasses import replace

import pytest

from engine_core.scheduler.planning.bursts import MOST_STEPS
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.world import World

ENDLESS = {"max_tokens": 60, "ignore_eos": True}


def lengths(world: World, steps: int) -> list[int]:
    """Steps of so many plans."""
    return [max(world.step().sample_counts, default=1) for _ in range(steps)]


def start(world: World, requests: int = 1, **options: object) -> World:
    """Adds requests of 3 tokens and computes their prompts."""
    for handle in range(1, requests + 1):
        world.add(handle, 3, **(ENDLESS | options))
    world.step()
    return world


def outputs(world: World) -> list[int]:
    return [len(request.sequences[0].output) for request in world.scheduler.requests]


def test_the_first_tokens_come_one_by_one():
    world = start(World(burst_seconds=0.02))
    for _ in range(8):
        (known,) = outputs(world)
        (length,) = lengths(world, 1)
        assert length <= known
    assert length > 2
    world.finish()


def test_a_burst_fits_into_the_time():
    world = start(World(burst_seconds=0.0049))
    assert max(lengths(world, 10)) == 4
    world.worker.step_us = 1700
    lengths(world, 1)
    assert max(lengths(world, 5)) == 2
    world.worker.step_us = 3000
    lengths(world, 1)
    assert lengths(world, 3) == [1, 1, 1]
    world.finish()


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_none_where_a_step_takes_all_the_time(seconds: float):
    assert lengths(start(World(burst_seconds=seconds)), 12) == [1] * 12


def test_it_has_a_bound():
    world = start(World(burst_seconds=1.0), max_tokens=90)
    while outputs(world)[0] < MOST_STEPS:
        world.step()
    world.step()
    assert world.worker.plans[-1].sample_counts == [MOST_STEPS]
    world.finish()


def test_rows_share_the_budget():
    world = start(World(burst_seconds=0.02, budget=7), 3)
    assert max(lengths(world, 15)) == 2
    world.finish()


def test_none_while_a_request_waits_or_its_prompt_is_computed():
    world = start(World(burst_seconds=0.02, rows=1))
    assert max(lengths(world, 6)) > 1
    world.add(2, 3, **ENDLESS)
    assert lengths(world, 4) == [1] * 4
    world.finish()


def test_none_for_rows_whose_tokens_the_core_has_a_part_in():
    """Beams, and rows with a grammar; nor for rows beside them."""
    world = World(burst_seconds=0.02)
    world.add(1, 3, max_tokens=9, ignore_eos=True, beams=beam_search(2), n=2)
    world.add(2, 3, **ENDLESS)
    assert lengths(world, 7) == [1] * 7
    world.finish()
    world = World(burst_seconds=0.02)
    request = world.add(1, 3, **ENDLESS)
    request.parameters = replace(request.parameters, grammar="g")
    world.add(2, 3, **ENDLESS)
    assert lengths(world, 9) == [1] * 9


def test_it_ends_with_the_limit_of_a_sequence():
    world = World(burst_seconds=1.0)
    world.add(1, 3, max_tokens=20, ignore_eos=True)
    world.add(2, 3, max_tokens=50, ignore_eos=True)
    world.finish()


def test_it_preempts_nothing():
    world = World(burst_seconds=1.0, blocks=10, block_size=4)
    world.add(1, 3, max_tokens=16, ignore_eos=True)
    world.add(2, 3, max_tokens=16, ignore_eos=True)
    world.finish()
    assert world.scheduler.num_preemptions == 0


def test_no_plan_is_made_behind_it():
    world = start(World(burst_seconds=0.02))
    lengths(world, 6)
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    world.add(2, 3, **ENDLESS)
    assert plan.sample_counts and not world.scheduler.schedule(0.0).rows
    world.scheduler.update(world.worker.collect())
    assert len(world.scheduler.schedule(0.0).rows) == 2
