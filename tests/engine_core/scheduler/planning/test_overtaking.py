"""A long prompt of one tenant does not hold up the first tokens of the others."""

import pytest

from engine_core.queue.base import FIRST_COME
from engine_core.queue.token_counters import Weights
from tests.engine_core.world import World

BUDGET, LONG, SHORT = 12, 56, 4


def beside_a_long_prompt(ahead: bool = False, **options: object) -> World:
    """Alice's prompt takes five steps, of which two are over."""
    world = World(rows=8, blocks=256, budget=BUDGET, ahead=ahead, prefix_cache=False, **options)  # type: ignore[arg-type]
    world.add(1, LONG, tenant="alice", max_tokens=3, ignore_eos=True)
    world.step(2)
    return world


def tokens_of(world: World, handle: int) -> int:
    return len(world.ledger.tokens.get((handle, 0), ()))


def counts(world: World) -> list[int]:
    """Tokens by row of the next step."""
    return world.step().counts


def test_a_short_prompt_of_another_tenant_is_computed_at_once() -> None:
    world = beside_a_long_prompt()
    world.add(2, SHORT, tenant="bob", max_tokens=3, ignore_eos=True)
    assert counts(world) == [SHORT, BUDGET - SHORT], "the long prompt takes the rest"
    assert tokens_of(world, 2) == 1 and not tokens_of(world, 1)
    assert counts(world) == [1, BUDGET - 1]
    world.finish()
    assert world.scheduler.planner.overtaking.num_overtakers == 1


def test_others_take_no_more_than_their_share_of_a_step() -> None:
    """Half of it here, so that the long prompt goes on."""
    world = beside_a_long_prompt()
    for handle in range(2, 6):
        world.add(handle, SHORT, tenant="bob", max_tokens=3, ignore_eos=True)
    assert counts(world) == [SHORT, BUDGET - SHORT]
    assert counts(world) == [1, SHORT, BUDGET - SHORT - 1]
    world.finish()


def test_a_tenant_of_more_weight_takes_more() -> None:
    world = beside_a_long_prompt(weights=Weights(tenants={"bob": 3.0}))
    for handle in range(2, 6):
        world.add(handle, SHORT, tenant="bob", max_tokens=3, ignore_eos=True)
    assert counts(world) == [SHORT, SHORT, BUDGET - 2 * SHORT]
    world.finish()


def test_a_better_class_takes_all_but_one_token() -> None:
    world = beside_a_long_prompt()
    world.add(2, BUDGET - 1, tenant="alice", priority=-1, max_tokens=3, ignore_eos=True)
    assert counts(world) == [BUDGET - 1, 1]
    world.finish()


@pytest.mark.parametrize(
    ("tenant", "priority", "policy"), [("alice", 0, "fair"), ("bob", 1, "fair"), ("bob", 0, FIRST_COME)]
)
def test_nothing_else_overtakes(tenant: str, priority: int, policy: str) -> None:
    """Neither the tenant's own requests, nor those of a worse class, nor any without shares."""
    world = beside_a_long_prompt(policy=policy)
    world.add(2, SHORT, tenant=tenant, priority=priority, max_tokens=3, ignore_eos=True)
    assert counts(world) == [BUDGET]
    world.finish()
    assert not world.scheduler.planner.overtaking.num_overtakers


def test_a_prompt_that_does_not_fit_into_its_share_waits() -> None:
    world = beside_a_long_prompt()
    world.add(2, 2 * BUDGET, tenant="bob", max_tokens=3, ignore_eos=True)
    assert counts(world) == [BUDGET]
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("blocks", [40, 256])
def test_outputs_are_those_of_requests_alone(ahead: bool, blocks: int) -> None:
    """With siblings, with two plans in flight, and in a pool that is short: finish() compares every token."""
    world = World(rows=8, blocks=blocks, budget=BUDGET, ahead=ahead)
    for handle in range(1, 25):
        tenant = ("alice", "bob", "carol")[handle % 3]
        length = LONG - handle // 3 if tenant == "alice" else SHORT + handle % 3
        world.add(handle, length, tenant=tenant, n=1 + handle % 2, max_tokens=7, ignore_eos=True)
    world.finish()
    assert world.scheduler.planner.overtaking.num_overtakers > 3
