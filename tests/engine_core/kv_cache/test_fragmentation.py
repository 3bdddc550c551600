"""Slots without a computed token: counted by sequence, and by the plain twin slot by slot."""

import pytest

from engine_core.kv_cache.block_tables import SAMPLED_STEPS, Fragmentation, count_empty
from engine_core.scheduler.scheduler import Scheduler
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import run
from tests.engine_core.world import World


def count_slots(scheduler: Scheduler) -> tuple[int, int]:
    """Held slots, and those of them with a computed token, counted one by one."""
    size = scheduler.tables.block_size
    held, computed = set[int](), set[int]()
    for sequence in scheduler.states.holders():
        slots = [block * size + offset for block in sequence.blocks for offset in range(size)]
        held.update(slots)
        computed.update(slots[: sequence.num_computed_tokens])
    return len(held), len(computed)


@pytest.mark.parametrize("block_size", [1, 3, 4, 8])
@pytest.mark.parametrize("ahead", [False, True])
def test_every_empty_slot_is_counted_once(block_size: int, ahead: bool) -> None:
    """Cut prompts, siblings on shared blocks, beams, preempted sequences."""
    world = World(blocks=72 // block_size, block_size=block_size, rows=9, budget=14, host_blocks=8)
    for handle in range(1, 13):
        options: dict[str, object] = {"n": 1 + handle % 3}
        if handle % 5 == 0:
            options = {"n": 2, "beams": beam_search(3)}
        world.add(handle, 5 + 7 * handle % 23, max_tokens=9, **options)
    scheduler, seen = world.scheduler, 0
    while scheduler.requests or scheduler.in_flight:
        run(scheduler, world.worker, world.ledger, steps=1, ahead=ahead)
        scheduler.states.drop_stopped()
        held, computed = count_slots(scheduler)
        assert count_empty(scheduler.tables, scheduler.states.holders()) == held - computed
        seen += held - computed
    assert scheduler.num_preemptions > 0 and (seen > 0 or block_size == 1)
    world.finish()


def test_the_ratio_is_that_of_the_samples() -> None:
    """A prompt of 13 tokens in blocks of 8, from the first sample on with as many tokens more as steps."""
    world = World(blocks=64, block_size=8)
    world.add(1, 13, max_tokens=40, ignore_eos=True)
    empty = allocated = 0
    for step in range(1, 40):
        world.step()
        if step % SAMPLED_STEPS == 0:
            tokens = 13 + step - 1
            allocated += -(-tokens // 8) * 8
            empty += -tokens % 8
    waste = world.scheduler.fragmentation
    assert (waste.num_empty, waste.num_allocated) == (empty, allocated)
    assert waste.ratio == empty / allocated


def test_before_the_first_sample_nothing_is_wasted() -> None:
    assert Fragmentation(World().scheduler.tables).ratio == 0.0
