"""Figures from steps: what is counted, and what is not."""

import pytest

from engine_core.scheduler.states.throughput import Mean
from tests.engine_core.world import World


def test_a_mean_is_that_of_all_and_then_follows() -> None:
    mean = Mean()
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.value == 3.0
    for _ in range(300):
        mean.add(10.0)
    assert mean.value == pytest.approx(10, rel=0.03)


def test_a_step_lasts_until_the_next_one_is_planned_but_idle_time_is_no_step() -> None:
    world = World()
    now = 5.0
    for handle in range(1, 20):
        world.add(handle, 5, max_tokens=4, ignore_eos=True, arrival=now)
        for _ in range(4):
            world.step(now=now)
            now += 0.25
        now += 1000
    throughput = world.scheduler.throughput
    assert throughput.step_seconds.value == 0.25
    assert throughput.run_steps.value == 4
    assert throughput.turnover_seconds == 1.0


def test_few_runs_say_nothing() -> None:
    world = World()
    for handle in range(1, 16):
        world.add(handle, 5, max_tokens=1)
    world.finish()
    assert world.scheduler.throughput.turnover_seconds is None
    world.add(16, 5, max_tokens=1)
    world.finish()
    assert world.scheduler.throughput.turnover_seconds is not None


def test_prompts_are_timed_in_full_steps_only() -> None:
    """A step that had room left says nothing about how many tokens fit into one."""
    world = World(budget=20, blocks=256)
    world.add(1, 10, max_tokens=30, ignore_eos=True)
    for now in range(5):
        world.step(now=now * 0.5)
    throughput = world.scheduler.throughput
    assert throughput.prompt_seconds(1) is None
    for handle in (2, 3, 4):
        world.add(handle, 40, max_tokens=20, ignore_eos=True)
    for now in range(5, 12):
        world.step(now=now * 0.5)
    assert throughput.prompt_seconds(180) == pytest.approx(5, rel=0.1), (
        "some 18 tokens beside those that decode"
    )
