"""The data of media: kept while a request in flight has them, since its prompt may be computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from engine_core.errors import Code, InvariantError, Refused
from engine_core.request import Request
from pagewire.retry_after import SOONEST_S

MEMORY_FULL, TOO_LARGE = "MEDIA_MEMORY_FULL", "MEDIA_TOO_LARGE"


@dataclass(slots=True)
class _Held:
    """The data of equal items."""

    data: bytes
    num_vectors: int
    num_items: int  # of requests in flight


class MediaMemory:
    """Data by digest, of all requests in flight: equal items are held once."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """That are held."""
        self._held: dict[bytes, _Held] = {}

    def __len__(self) -> int:
        """Returns the number of different items."""
        return len(self._held)

    def check(self, request: Request, capacity: float, stretch: float) -> None:
        """Raises Refused if there is no room for the media of a request that arrives, or if an item has
        another number of vectors than an equal one. capacity: bytes. stretch: how often it may be filled."""
        if not request.parameters.media:
            return
        new = dict[bytes, _Held]()
        for item in request.parameters.media:
            known = self._held.get(item.digest) or new.get(item.digest)
            if known is None:
                new[item.digest] = _Held(item.data, len(item.positions), 0)
            elif known.num_vectors != len(item.positions):
                text = f"have an item of {known.num_vectors} and of {len(item.positions)} positions"
                raise Refused("prompt.media", text)
        size = sum(len(each.data) for each in new.values())
        if size > capacity:
            text = f"have {size} bytes as the encoder takes them, more than the limit of {capacity:.0f}"
            raise Refused("prompt.media", text, TOO_LARGE)
        if stretch < inf and self.num_bytes + size > capacity * stretch:
            text = "the memory for media is full: too many requests with media are in flight"
            raise Refused("", text, MEMORY_FULL, Code.RESOURCE_EXHAUSTED, retry_after=SOONEST_S)

    def add(self, request: Request) -> None:
        """Holds the data of a request that was checked. Items then share those of equal ones."""
        for item in request.parameters.media:
            held = self._held.get(item.digest)
            if held is None:
                held = self._held[item.digest] = _Held(item.data, len(item.positions), 0)
                self.num_bytes += len(item.data)
            item.data = held.data
            held.num_items += 1

    def remove(self, request: Request) -> None:
        """Drops what no other request needs."""
        for item in request.parameters.media:
            held = self._held[item.digest]
            item.data = b""  # others keep a request that has ended for longer, such as heaps of times
            held.num_items -= 1
            if not held.num_items:
                del self._held[item.digest]
                self.num_bytes -= len(held.data)

    def check_invariants(self, requests: Iterable[Request]) -> None:
        """Raises InvariantError unless the data of these requests, all in flight, and no other are held."""
        found = Counter(item.digest for request in requests for item in request.parameters.media)
        if found != {digest: each.num_items for digest, each in self._held.items()}:
            raise InvariantError("media are held for requests that have none, or too few")
        if self.num_bytes != sum(len(each.data) for each in self._held.values()):
            raise InvariantError(f"{self.num_bytes} bytes of media are not those that are held")
