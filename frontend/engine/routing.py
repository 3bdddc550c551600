"""A request's hints for the choice of its core. (The choice: dispatcher.choose.)"""

from dataclasses import dataclass

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
