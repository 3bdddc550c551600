"""A better class takes rows from a worse one that runs, within bounds, where a flag allows it."""

import pytest

from engine_core.scheduler.planning.step_planner import MAX_PREEMPTIONS
from tests.engine_core.world import World

ROWS, OUTPUT = 4, 12


def full(preempt_rows: bool = True, ahead: bool = False, **options: object) -> World:
    """All rows run sequences of class 0, the first of which has the longest prompt."""
    world = World(
        rows=ROWS,
        blocks=256,
        budget=32,
        preempt_rows=preempt_rows,
        ahead=ahead,
        prefix_cache=False,
        **options,
    )  # type: ignore[arg-type]
    for handle in range(1, ROWS + 1):
        world.add(handle, 12 - 2 * handle, max_tokens=OUTPUT, ignore_eos=True)
    world.step(3)
    return world


def running(world: World) -> set[int]:
    return {sequence.request.handle for sequence in world.scheduler.running}


def test_the_cheapest_of_a_worse_class_gives_up_its_row() -> None:
    world = full()
    world.add(9, 5, priority=-1, max_tokens=OUTPUT, ignore_eos=True)
    world.step(2)
    assert running(world) == {1, 2, 3, 9} and world.scheduler.num_preemptions == 1
    world.finish()


def test_a_request_gets_as_many_rows_as_it_has_sequences() -> None:
    world = full()
    world.add(9, 5, n=2, priority=-1, max_tokens=OUTPUT, ignore_eos=True)
    world.step(2)
    assert running(world) == {1, 2, 9} and world.scheduler.num_preemptions == 2
    world.finish()


@pytest.mark.parametrize(
    ("enabled", "priority", "budget"), [(False, -1, 32), (True, 0, 32), (True, 1, 32), (True, -1, 4)]
)
def test_no_row_is_taken(enabled: bool, priority: int, budget: int) -> None:
    """Without the flag, by an equal or worse class, or where it would cost more than a step."""
    world = full(enabled)
    world.scheduler.planner.row_preemption._max_tokens_lost = budget
    world.add(9, 5, priority=priority, max_tokens=OUTPUT, ignore_eos=True)
    world.step(2)
    assert running(world) == {1, 2, 3, 4} and not world.scheduler.num_preemptions
    world.finish()


def test_a_request_gives_up_its_row_twice_at_most() -> None:
    world = World(rows=1, blocks=64, budget=64, preempt_rows=True)
    request = world.add(1, 5, max_tokens=40, ignore_eos=True)
    world.step(2)
    for handle in range(2, 6):
        world.add(handle, 5, priority=-1, max_tokens=2, ignore_eos=True)
        world.step(4)
    assert request.num_preemptions == MAX_PREEMPTIONS and running(world) == {1}
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 64])
def test_outputs_are_those_of_requests_alone(ahead: bool, host_blocks: int) -> None:
    """Whatever is preempted, with two plans in flight and with copies: finish() compares every token."""
    world = full(ahead=ahead, host_blocks=host_blocks)
    for handle in range(10, 40):
        n = 1 + handle % 3
        world.add(handle, 3 + handle % 7, n=n, priority=handle % 4 - 2, max_tokens=7, ignore_eos=True)
        if handle % 3 == 0 and not ahead:
            world.step()
    world.finish()
    assert world.scheduler.num_preemptions


@pytest.mark.parametrize("host_blocks", [0, 64])
def test_the_device_does_not_idle_where_all_give_up_their_rows(host_blocks: int) -> None:
    """The request begins in the plan that takes the rows; with copies of what was computed in it."""
    world = World(rows=2, blocks=64, budget=64, preempt_rows=True, host_blocks=host_blocks)
    for handle in (1, 2):
        world.add(handle, 5, max_tokens=20, ignore_eos=True)
    world.step(3)
    world.add(3, 9, n=2, priority=-1, max_tokens=4, ignore_eos=True)
    before = world.scheduler.step
    world.step()
    assert world.scheduler.step == before + 1 and world.scheduler.num_preemptions == 2
    assert running(world) == {3}
    world.finish()
