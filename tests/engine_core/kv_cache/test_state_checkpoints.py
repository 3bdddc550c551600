"""Which states are saved, found and written over. The fake worker checks that rows go on from their own."""

import random

import pytest

from engine_core.errors import InvariantError
from engine_core.kv_cache.state_checkpoints import StateCheckpoints
from engine_core.request import NO_TOKEN
from engine_core.step.result import Result
from tests.engine_core.fake_states import StatefulFakeWorker
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.world import World, columns

BASE = list(range(100, 160))
"""A prompt to share; blocks have 4 tokens."""


class StatefulWorld(World):
    """Of a model whose rows keep states."""

    def __init__(self, num_checkpoints: int, **settings: object) -> None:
        super().__init__(state_checkpoints=num_checkpoints, **settings)  # type: ignore[arg-type]
        self.worker = StatefulFakeWorker(self.worker.num_blocks, self.worker.block_size, num_checkpoints)

    def saved(self) -> list[tuple[int, int]]:
        """Positions and slots of all saves so far."""
        plans = self.worker.plans
        return [
            pair for plan in plans for pair in zip(plan.save_positions, plan.save_checkpoints, strict=True)
        ]


def prompt(common: int, *own: int) -> list[int]:
    """So many tokens that others have too, then these."""
    return BASE[:common] + list(own)


def test_the_next_turn_of_a_conversation() -> None:
    """It begins behind the last whole block of the prompt before it, whose output has no state."""
    world = StatefulWorld(4)
    world.add(1, prompt(10), max_tokens=20)
    world.finish()
    assert world.saved() == [(8, 0)], "in one step, which is not cut"
    world.add(2, prompt(10) + expected_output(add_request(1, prompt(10), max_tokens=20), 0)[0] + [7])
    assert columns(world.step())[0][0] == 8
    world.finish()


def test_a_common_beginning() -> None:
    """The second request that has it saves the state at its end, from which the third one begins."""
    world = StatefulWorld(8)
    for handle in (1, 2, 3):
        world.add(handle, prompt(20, *range(7 * handle, 7 * handle + 6)))
        world.finish()
    assert world.ledger.cached == {1: 0, 2: 0, 3: 20}
    assert [position for position, _ in world.saved()] == [24, 20, 24, 24]


def test_a_chunk_that_passes_no_border_saves_nothing() -> None:
    """Each state is saved by the chunk that passes it."""
    world = StatefulWorld(4, budget=7)
    world.add(1, prompt(18))
    world.finish()
    assert [plan.save_positions for plan in world.worker.plans[:3]] == [[], [], [16]]


def test_the_oldest_state_is_written_over() -> None:
    """Used ones are younger."""
    world = StatefulWorld(2)
    for handle, first in ((1, 300), (2, 400), (3, 300), (4, 500), (5, 300), (6, 400)):
        world.add(handle, [*range(first, first + 9)])
        world.finish()
    assert world.ledger.cached == {1: 0, 2: 0, 3: 8, 4: 0, 5: 8, 6: 0}


def test_states_of_a_plan_are_found_by_the_next_one() -> None:
    """Not by the same: it restores before it saves. And no slot is written twice in a plan."""
    world = StatefulWorld(1)
    for handle in (1, 2, 3):
        world.add(handle, prompt(9, handle))
    assert columns(world.step()) == [(0, 10)] * 3
    assert len(world.saved()) == 1
    world.add(4, prompt(9, 4))
    assert (8, 2) in columns(world.step())
    world.finish()


def test_what_is_forgotten_with_the_blocks() -> None:
    """By a reset, and by a row without a token."""
    world = StatefulWorld(2)
    world.add(1, prompt(9))
    world.finish()
    world.scheduler.reset_cache()
    world.add(2, prompt(9))
    plan = world.scheduler.schedule(0.0)
    assert plan.starts == [0] and plan.save_positions == [8]
    world.scheduler.update(Result(plan.step, [NO_TOKEN]))
    world.worker.execute(plan)
    del world.messages[2]
    world.add(3, prompt(9))
    assert columns(world.step()) == [(0, 9)]
    world.finish()


def test_requests_that_bypass_the_cache() -> None:
    world = StatefulWorld(2)
    for handle in (1, 2):
        world.add(handle, prompt(9), bypass=True)
        world.finish()
    assert not world.saved()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_crowd(ahead: bool) -> None:
    """In a pool that preempts, with few slots: every row goes on from its own state, to the tokens it has
    alone."""
    draw = random.Random(3)
    world = StatefulWorld(3, blocks=24, budget=16, ahead=ahead)
    for handle in range(1, 60):
        own = [draw.randrange(200, 240) for _ in range(draw.randint(0, 3))]
        world.add(
            handle, prompt(draw.choice([5, 9, 16, 22]), *own, 9), n=draw.choice([1, 1, 3]), max_tokens=9
        )
        if draw.random() < 0.4:
            world.step()
    world.finish()
    assert world.scheduler.num_preemptions > 5
    assert sum(len(plan.restore_rows) for plan in world.worker.plans) > 20


def test_a_lost_slot_is_noticed() -> None:
    checkpoints = StateCheckpoints(2, 4)
    checkpoints.check_invariants()
    checkpoints._free.pop()
    with pytest.raises(InvariantError, match="lost or taken twice"):
        checkpoints.check_invariants()
