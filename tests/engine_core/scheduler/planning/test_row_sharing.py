"""A tenant that waits takes rows from one that holds more than its share, within bounds."""

import pytest

from engine_core.queue.base import FIRST_COME
from engine_core.queue.token_counters import Weights
from engine_core.scheduler.planning.step_planner import MAX_PREEMPTIONS
from pagewire.v1.generation_pb2 import BeamSearch
from tests.engine_core.world import World

ROWS, OUTPUT = 8, 24


def full(share_rows: bool = True, **options: object) -> World:
    """Tenant many holds all rows, by the samples of one request."""
    world = World(rows=ROWS, blocks=256, share_rows=share_rows, **options)  # type: ignore[arg-type]
    world.add(1, 6, n=ROWS, max_tokens=OUTPUT, ignore_eos=True, tenant="many")
    world.step(3)
    return world


def held(world: World) -> dict[str, int]:
    tenants = [sequence.request.tenant for sequence in world.scheduler.running]
    return {tenant: tenants.count(tenant) for tenant in sorted(set(tenants))}


def flood(world: World, tenant: str, count: int, **options: object) -> None:
    for handle in range(len(world.messages) + 1, len(world.messages) + 1 + count):
        world.add(handle, 3, max_tokens=OUTPUT, ignore_eos=True, tenant=tenant, **options)  # type: ignore[arg-type]


def test_samples_of_one_request_make_room_for_another_tenant() -> None:
    """It once waited until they ended. Half of its share is taken; it gets the rest as sequences end."""
    world = full()
    flood(world, "one", ROWS)
    world.step(2)
    assert held(world) == {"many": 7, "one": 1}
    world.step(8)
    assert held(world) == {"many": 6, "one": 2} and world.scheduler.num_preemptions == 2
    world.finish()


def test_shares_are_by_weight() -> None:
    world = full(weights=Weights(tenants={"one": 3.0}))
    flood(world, "one", ROWS)
    world.step(12)
    assert held(world) == {"many": 5, "one": 3}
    world.finish()


@pytest.mark.parametrize(
    ("options", "tenant", "priority"),
    [
        ({"share_rows": False}, "one", 0),
        ({}, "many", 0),
        ({}, "one", 1),
        ({"policy": FIRST_COME}, "one", 0),
    ],
    ids=["without the setting", "of its own tenant", "from a better class", "first come, first served"],
)
def test_no_row_is_taken(options: dict[str, object], tenant: str, priority: int) -> None:
    world = full(**options)  # type: ignore[arg-type]
    flood(world, tenant, 2, priority=priority)
    world.step(4)
    assert held(world) == {"many": ROWS} and not world.scheduler.num_preemptions
    world.finish()


def test_no_row_is_taken_where_it_would_cost_more_than_a_step() -> None:
    world = full(prefix_cache=False)
    world.scheduler.planner.row_sharing._max_tokens_lost = 1
    flood(world, "one", 2)
    world.step(4)
    assert held(world) == {"many": ROWS}
    world.finish()


def test_a_sequence_gives_up_its_row_twice_at_most() -> None:
    world = World(rows=2, blocks=64, share_rows=True)
    many = world.add(1, 5, n=2, max_tokens=80, ignore_eos=True, tenant="many")
    world.step(2)
    for handle in range(2, 12):
        world.add(handle, 5, max_tokens=2, ignore_eos=True, tenant=f"other {handle}")
        world.step(4)
    assert max(sequence.num_preemptions for sequence in many.sequences) == MAX_PREEMPTIONS
    assert sum(sequence.num_preemptions for sequence in many.sequences) <= 2 * MAX_PREEMPTIONS
    world.finish()


@pytest.mark.parametrize(("width", "taken"), [(2, True), (8, False)])
def test_beams_give_up_their_rows_together_or_not_at_all(width: int, taken: bool) -> None:
    """A search that is its tenant's whole share keeps its rows; of several, one begins again later."""
    world = World(rows=8, blocks=256, share_rows=True)
    for handle in range(1, 1 + 8 // width):
        beams = BeamSearch(width=width, length_penalty=1, early_stopping=False)
        world.add(handle, 4, n=1, max_tokens=12, ignore_eos=True, tenant="many", beams=beams)
    world.step(3)
    assert not world.scheduler.rows.free
    world.add(9, 3, max_tokens=2, ignore_eos=True, tenant="one")
    world.step(2)
    assert ("one" in held(world)) is taken and bool(world.scheduler.num_preemptions) is taken


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 64])
def test_outputs_are_those_of_requests_alone(ahead: bool, host_blocks: int) -> None:
    """Whatever is preempted, with two plans in flight and with copies: finish() compares every token."""
    world = full(ahead=ahead, host_blocks=host_blocks)
    for handle in range(10, 50):
        n, tenant = 1 + handle % 5, "abc"[handle % 3]
        world.add(handle, 3 + handle % 7, n=n, max_tokens=7, ignore_eos=True, tenant=tenant)
        if handle % 3 == 0 and not ahead:
            world.step()
    world.finish()
    assert world.scheduler.num_preemptions
