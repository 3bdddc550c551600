"""Which core gets a request. Pure.

By rank, where the client names one and that core serves. By session: the same session meets the same core,
and with it its prefix cache, from every frontend and after every restart; while its core is away, another
one has it, and no other session moves. Else whoever has least to do, of two that are drawn: what a frontend
knows of the others' requests is up to a second old, and if all frontends ran to the one core that looked
emptiest then, it would be the fullest. Of two cores, that is the emptier one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol, TypeVar

from pagewire.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class Routing:
    """What a request says about its place."""

    rank: int | None = None
    session_id: str = ""


ANYWHERE = Routing()


def routing_of(hints: generation_pb2.RoutingHints) -> Routing:
    """From a request's message."""
    rank = hints.data_parallel_rank if hints.HasField("data_parallel_rank") else None
    return Routing(rank, hints.session_id) if rank is not None or hints.session_id else ANYWHERE


class Candidate(Protocol):
    """A core that serves."""

    address: str
    rank: int

    @property
    def load(self) -> float:
        """What it has to do, in a unit that all cores share."""


C = TypeVar("C", bound=Candidate)


def choose(cores: Sequence[C], routing: Routing, random: Random) -> C:
    """One of the cores, of which there is one at least."""
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
    """Rendezvous hashing: the highest of these wins, so that a core that leaves or comes moves its own
    sessions and no others."""
    return blake2b(session_id.encode(), key=blake2b(address.encode()).digest(), digest_size=8).digest()
