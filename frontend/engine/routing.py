"""Chooses the core for a request. Pure.

By rank, when the client names one that serves. By session: the same session always goes to the same core and
its prefix cache, from every frontend and after every restart; while that core is away another one takes over,
and no other session moves. Otherwise the less loaded of two randomly drawn cores: load figures are up to a
second old, and if every frontend chose the core that looked emptiest, it would become the fullest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol, TypeVar

from pagewire.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class Routing:
    """A request's routing hints."""

    rank: int | None = None
    session_id: str = ""


ANYWHERE = Routing()


def routing_of(hints: generation_pb2.RoutingHints) -> Routing:
    """Returns the hints of a public request."""
    rank = hints.data_parallel_rank if hints.HasField("data_parallel_rank") else None
    return Routing(rank, hints.session_id) if rank is not None or hints.session_id else ANYWHERE


class Candidate(Protocol):
    """A core that serves."""

    address: str
    rank: int

    @property
    def load(self) -> float:
        """Its load, in a unit that all cores share."""


C = TypeVar("C", bound=Candidate)


def choose(cores: Sequence[C], routing: Routing, random: Random) -> C:
    """Returns one of the cores (at least one)."""
    if len(cores) == 1:
        return cores[0]
    if routing.rank is not None:
        for core in cores:
            if core.rank == routing.rank:
                return core
    if routing.session_id:
        return max(cores, key=lambda core: _score(core.address, routing.session_id))
    return min(random.sample(cores, 2), key=lambda core: core.load)


def _score(address: str, session_id: str) -> bytes:
    """Rendezvous hash: the core with the highest score wins, so a core that comes or goes moves only its own
    sessions."""
    return blake2b(session_id.encode(), key=blake2b(address.encode()).digest(), digest_size=8).digest()
