"""What tenants are charged, seen from a scheduler: each token once, whatever happens to its sequence."""

import pytest

from engine_core.queue import token_counters as tenants
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Tenants, Weights
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.world import World

PRICES = Weights(prompt_token=1, output_token=100, tenants={"double": 2})
"""A counter of 307 is three tokens of output and seven of prompt."""


def tenants_of(world: World) -> Tenants:
    waiting = world.scheduler.waiting
    assert isinstance(waiting, FairQueue)
    return waiting.tenants


class Till:
    """A world, and what a tenant owes."""

    def __init__(self, **options: int) -> None:
        self.world = World(weights=PRICES, **options)  # type: ignore[arg-type]
        self.tenants = tenants_of(self.world)

    def owes(self, tenant: str = "") -> float:
        return self.tenants.counter_on_arrival(tenant, 0.0)


def test_prompt_and_output_count_as_their_weights_say() -> None:
    till = Till()
    till.world.add(1, 7, max_tokens=3, ignore_eos=True)
    till.world.step()
    assert till.owes() == 107, "known while it runs"
    till.world.finish()
    assert till.owes() == 307


def test_a_tenant_of_weight_two_owes_half() -> None:
    till = Till()
    till.world.add(1, 7, max_tokens=3, ignore_eos=True, tenant="double")
    till.world.finish()
    assert till.owes("double") == 153.5


def test_what_the_cache_had_costs_nothing() -> None:
    till = Till()
    prompt = list(range(100, 110))
    till.world.add(1, prompt, max_tokens=1, ignore_eos=True)
    till.world.finish()
    assert till.owes() == 110
    till.world.add(2, prompt, max_tokens=1, ignore_eos=True)
    till.world.finish()
    assert till.world.ledger.cached[2] == 8
    assert till.owes() == 110 + 102


def test_siblings_share_the_prompt() -> None:
    till = Till()
    till.world.add(1, 7, n=3, max_tokens=2, ignore_eos=True)
    till.world.finish()
    assert till.owes() == 7 + 600


def test_each_beam_makes_tokens_of_its_own() -> None:
    """All but the last ones, which end the search."""
    till = Till()
    till.world.add(1, 7, beams=beam_search(3), max_tokens=3, ignore_eos=True)
    till.world.finish()
    assert till.owes() == 7 + 3 * 200


def test_a_preempted_sequence_pays_once() -> None:
    till = Till(blocks=6, rows=3)
    for handle in (1, 2, 3):
        till.world.add(handle, 7, max_tokens=12, ignore_eos=True)
    till.world.finish()
    assert till.world.scheduler.num_preemptions
    assert till.owes() == 3 * (7 + 1200)


@pytest.mark.parametrize("ahead", [False, True])
def test_so_it_is_one_step_ahead(ahead: bool) -> None:
    """A sequence that ends early has been planned once more than it made tokens: that one is not charged."""
    till = Till(blocks=8, rows=3)
    till.world.ahead = ahead
    for handle in (1, 2, 3, 4, 5):
        till.world.add(handle, 5, max_tokens=12, stop_token_ids=range(100, 250))
    till.world.finish()
    made = sum(map(len, till.world.ledger.tokens.values()))
    assert made < 60
    assert till.owes() == 5 * 5 + 100 * made


def test_an_aborted_sequence_pays_for_what_was_computed() -> None:
    till = Till(budget=4)
    request = till.world.add(1, 30, max_tokens=12)
    till.world.step(3)
    till.world.scheduler.abort(request)
    assert till.owes() == 12
    request = till.world.add(2, 3, max_tokens=12, ignore_eos=True)
    till.world.step(2)
    till.world.scheduler.abort(request)
    assert till.owes() == 12 + 3 + 200


def test_output_that_came_with_the_request_is_computed_like_a_prompt() -> None:
    till = Till()
    till.world.add(1, 7, max_tokens=5, ignore_eos=True, delivered={0: [50, 51, 52]})
    till.world.finish()
    assert till.owes() == 10 + 200


def test_a_tenant_that_waits_and_goes_owes_nothing() -> None:
    till = Till()
    till.world.scheduler.abort(till.world.add(1, 7))
    assert till.owes() == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tenants with nothing in flight only the latest are remembered; all others stay."""
    monkeypatch.setattr(tenants, "MAX_IDLE", 3)
    world = World(rows=1)
    known = tenants_of(world)
    for handle in range(1, 8):
        world.add(handle, 2, tenant=f"t{handle}", max_tokens=1)
    world.step(3)
    assert len(known) == 7
    world.finish()
    assert len(known) == 3
    world.scheduler.check_invariants()


def test_counters_are_read_without_looking_at_what_runs() -> None:
    """A step changes no tenant: running sequences are counted when a counter is read."""
    counters = Tenants(PRICES)
    tenant = counters.find("a")
    tenant.num_running = 4096
    for _ in range(10):
        counters.step()
    assert tenant.charged == 0 and counters.counter(tenant) == 4096 * 10 * 100
