"""Which core gets a request."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from frontend.engine.core import ANYWHERE, Routing, routing_of
from frontend.engine.dispatcher import ADAPTER_MARGIN, choose, fit
from pagewire.internal.v1.engine_pb2 import (
    CORE_ROLE_DECODE,
    CORE_ROLE_PREFILL,
    CORE_ROLE_UNSPECIFIED,
    CoreRole,
)
from pagewire.v1 import generation_pb2


@dataclass
class Core:
    rank: int
    load: float = 0.0
    held_adapters: frozenset[bytes] = frozenset()
    role: CoreRole = CORE_ROLE_UNSPECIFIED

    @property
    def address(self) -> str:
        return f"ipc:///{self.rank}"


def sessions(cores: list[Core], count: int = 400) -> dict[str, int]:
    names = (f"session {number}" for number in range(count))
    return {name: choose(cores, Routing(session_id=name), Random()).rank for name in names}


def test_hints():
    assert routing_of(generation_pb2.RoutingHints()) is ANYWHERE
    assert routing_of(generation_pb2.RoutingHints(data_parallel_rank=0)) == Routing(rank=0)
    assert routing_of(generation_pb2.RoutingHints(session_id="s")) == Routing(session_id="s")


def test_a_rank_that_serves_is_taken_whatever_it_has_to_do():
    cores = [Core(0), Core(2, load=9.0)]
    assert choose(cores, Routing(rank=2), Random()).rank == 2
    assert choose(cores, Routing(rank=1), Random()).rank == 0  # away: as if it had not been requested


def test_sessions_are_spread_evenly_and_stay():
    cores = [Core(rank) for rank in range(4)]
    before = sessions(cores)
    elsewhere = [Core(rank) for rank in range(4)]  # another frontend has objects of its own
    assert before == sessions(elsewhere[::-1])
    assert all(60 < count < 140 for count in Counter(before.values()).values())


def test_a_core_that_goes_moves_its_own_sessions_and_no_others():
    cores = [Core(rank) for rank in range(4)]
    before, after = sessions(cores), sessions(cores[:2] + cores[3:])
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {name for name, rank in before.items() if rank == 2}
    assert len({after[name] for name in moved}) == 3  # and not all to one


def test_the_busiest_of_many_gets_nothing():
    cores = [Core(rank, load=rank / 10) for rank in range(5)]
    chosen = Counter(choose(cores, ANYWHERE, Random(seed)).rank for seed in range(500))
    assert 4 not in chosen and chosen[0] > chosen[1] > chosen[2] > chosen[3] > 0


def test_stale_load_figures_do_not_send_all_requests_to_one_core():
    """Each of 8 frontends has 20 requests and sees the same loads, its own included. The emptiest core of
    four would get half of them and more, were it not for chance."""
    chosen: Counter[int] = Counter()
    for frontend in range(8):
        cores = [Core(rank, load=10 + rank) for rank in range(4)]
        dice = Random(frontend)
        for _ in range(20):
            core = choose(cores, ANYWHERE, dice)
            core.load += 1
            chosen[core.rank] += 1
    assert max(chosen.values()) < 80


def adapted(cores: list[Core], count: int = 100) -> list[int]:
    """Ranks of the cores to which requests with so many adapters go."""
    names = [b"%032d" % number for number in range(count)]
    return [choose(cores, Routing(adapter=name), Random(seed)).rank for seed, name in enumerate(names)]


def test_a_core_that_holds_the_adapter_is_preferred():
    every = frozenset(b"%032d" % number for number in range(100))
    hashed = adapted([Core(rank) for rank in range(3)])
    assert {*hashed} == {0, 1, 2}, "no core holds any"
    for holder in range(3):
        cores = [Core(rank, held_adapters=every if rank == holder else frozenset()) for rank in range(3)]
        assert {*adapted(cores)} == {holder}
        cores[holder].load = ADAPTER_MARGIN
        assert {*adapted(cores)} == {holder}
        cores[holder].load = 2 * ADAPTER_MARGIN
        assert {*adapted(cores)} == {0, 1, 2} - {holder}, "it has too much to do"


def test_of_several_holders_each_adapter_has_its_own():
    """So that the others may drop it. A holder that is too busy hands its adapters to another holder."""
    every = frozenset(b"%032d" % number for number in range(100))
    cores = [Core(rank, held_adapters=every) for rank in (2, 0)] + [Core(1)]
    first = adapted(cores)
    assert {*first} == {0, 2} and first == adapted(cores[::-1])
    cores[0].load = 2 * ADAPTER_MARGIN
    assert {*adapted(cores)} == {0}


def test_roles():
    prefill, decode, both = Core(0, role=CORE_ROLE_PREFILL), Core(1, role=CORE_ROLE_DECODE), Core(2)

    def ranks(cores: list[Core], *, has_output: bool, rank: int | None = None) -> list[int]:
        return [core.rank for core in fit(cores, Routing(rank=rank), has_output=has_output)]

    cores = [prefill, decode, both]
    assert ranks(cores, has_output=False) == [0, 2] and ranks(cores, has_output=True) == [1, 2]
    assert ranks([decode], has_output=False) == [1] and ranks([prefill], has_output=True) == [0]
    assert ranks(cores, has_output=False, rank=1) == [1], "the client has named it"
    assert ranks(cores, has_output=True, rank=0) == [1, 2]
