"""Requests that kill the engine fail, alone and soon; kills from outside are blamed on no request."""

import pytest

from engine_core.quarantine.blame import STRIKES
from tests.simulation.run import Totals, run_chunk

pytestmark = pytest.mark.timeout(1200)  # each computes for up to a quarter of a minute


def run(kind: str, seeds: int, *others: int) -> Totals:
    """The first seeds of a kind, and others."""
    totals = run_chunk([*others, *range(seeds)], kind)
    assert not totals.failures, "".join(text for _, text in totals.failures)
    return totals


@pytest.mark.parametrize(("kind", "seeds"), [("poison", 60), ("two", 4), ("moody", 4)])
def test_no_other_request_fails(kind: str, seeds: int) -> None:
    """Every client checks its own stream, and that it had no reason to be quarantined."""
    totals = run(kind, seeds)
    assert totals.outcomes["REQUEST_QUARANTINED"] > 30 or kind != "poison"


def test_requests_keep_their_adapters() -> None:
    """Names get other adapters, files change, memory is short, and processes end. Among these seeds are those
    that have found something: a stream that went on with another adapter (31), adapters that a worker loaded
    for a core that was gone (15), kills of cores that were laid to an adapter (18), a frontend that the core
    took for lost and did not tell of a new name (85), replays that did not know what a block was adapted by
    (12), a name that was loaded again before its unload was answered, and then forgotten (287, 326)."""
    totals = run("adapters", 60, 85, 287, 326)
    assert totals.outcomes["complete"] > 500 and totals.outcomes["embedded"] > 100
    assert totals.adoptions > 100 and totals.outcomes["ADAPTER_CHANGED"] > 5


def test_images_beside_an_encoder_with_little_room() -> None:
    """Outputs are those of each request alone, and so are the blocks that requests share."""
    totals = run("images", 60)
    assert totals.outcomes["complete"] > 500 and totals.preemptions > 100 and totals.adoptions > 100


def test_one_of_64_is_found_within_five_deaths() -> None:
    totals = run("crowd", 6)
    assert totals.outcomes["REQUEST_QUARANTINED"] > 2
    assert max(totals.poison_deaths) == STRIKES + 2


def test_fifty_kills_are_laid_to_no_request() -> None:
    totals = run("storm", 15)
    assert totals.deaths > 300 and not totals.outcomes["REQUEST_QUARANTINED"]


def test_a_worker_serves_one_core_after_another() -> None:
    """With all that its blocks hold. Cores are killed or told to end while they compute; so are workers."""
    totals = run("succession", 15)
    assert totals.adoptions > 150 and totals.adopted_blocks > 500 and totals.deaths > totals.adoptions


def test_a_group_of_ranks_serves_one_core_after_another() -> None:
    """A plan that a core has sent to some ranks only is begun by none. Ranks end, and so do their groups."""
    totals = run("groups", 20)
    assert totals.adoptions > 100 and totals.adopted_blocks > 300 and totals.deaths > totals.adoptions


def test_blocks_move_between_cores() -> None:
    """In the midst of copies processes end, links fall silent, blocks are short. It has found that requests
    waited for copies of others while nothing ran."""
    totals = run("moves", 30)
    assert totals.pulls["pulled"] > 10
    assert totals.pulls["late"] + totals.pulls["failed"] + totals.pulls["ended"] > 20


def test_a_worker_serves_one_core_after_another_with_states() -> None:
    """Which rows of the next core begin with, as the worker's checkpoints hold them."""
    totals = run("states", 9)
    assert totals.adoptions > 60 and totals.adopted_states > 60
