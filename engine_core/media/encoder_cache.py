"""The worker's encoder cache, as plans change it: which items it has vectors of, and which a step encodes.

An item is encoded in the first step that computes one of its positions, whole. Its vectors stay until others
need the room, the least recently used first; those that a step computes with stay until the next one. So an
image over several chunks is encoded once, and one that comes again is not encoded again.

A step encodes no more vectors than its budget, but for a single item that is larger. A chunk ends before the
first position whose item finds no room in budget or cache; the next step begins with that item, before any
other, and no valid item is larger than the cache: so every prompt advances.

Where tokens of an item see one another, no chunk cuts one: it ends before the item, or takes all of it.
Cached blocks may end within an item, all of which was seen when they were computed.

A worker has no vectors when it begins, and when a core adopts it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator

from engine_core.errors import InvariantError
from engine_core.request import Request, Sequence
from engine_core.step.plan import MediaItem, Plan


class EncoderCache:
    """Decides what each plan encodes and forgets. Prompts without media cost nothing."""

    def __init__(self, capacity: int, budget: int, whole_media: bool = False) -> None:
        """capacity: vectors that the worker keeps. budget: vectors that a step encodes. whole_media: no chunk
        cuts an item."""
        self.capacity, self.budget, self._whole_media = capacity, budget, whole_media
        self.num_encoded = self.num_encoded_vectors = self.num_hits = 0
        """Items and vectors that were encoded, and items that were kept from an earlier step, since the
        start; a hit counts once for each chunk that needs the item."""
        self.num_vectors = 0
        """That the worker keeps."""
        self.is_short = False
        """Whether an item of the last plan found no room."""
        self._kept: OrderedDict[bytes, int] = OrderedDict()  # digest -> vectors, least recently used first
        self._in_use: dict[bytes, int] = {}  # those that the plan computes with
        self._distrusted = set[bytes]()  # those of self._kept that the next plan encodes again
        self._num_planned = 0  # vectors that the plan encodes

    def __len__(self) -> int:
        """Returns the number of items that the worker keeps."""
        return len(self._kept)

    def begin_plan(self) -> None:
        """A plan is being made; plans before it are executed first."""
        self.is_short = False
        self._in_use.clear()
        self._num_planned = 0

    def affords(self, sequence: Sequence, start: int, end: int) -> bool:
        """Returns whether a plan can compute these positions of a sequence beside what it has."""
        needed = {item.digest: item for item, _ in _touched(sequence, start, end)}
        for digest in self._in_use:
            needed.pop(digest, None)
        lacking = [len(item.positions) for digest, item in needed.items() if not self._has(digest)]
        room = self.capacity - sum(self._in_use.values())
        fits = sum(len(item.positions) for item in needed.values()) <= room
        fits &= self._has_budget(sum(lacking)) or (len(lacking) == 1 and not self._num_planned)
        self.is_short |= not fits
        return fits

    def least(self, sequence: Sequence, start: int) -> int:
        """Returns how many tokens a chunk of a sequence has at least that begins at position `start`."""
        item = _across(sequence, start + 1) if self._whole_media else None
        return 1 if item is None else item.positions[-1] + 1 - start

    def extend(self, sequence: Sequence, start: int, end: int, plan: Plan) -> int:
        """Has a plan encode what it needs to compute the positions from `start` to before `end` of a
        sequence. Returns where to stop: `end`, or before an item that it would cut and must not, or a
        position whose item finds no room. A chunk of least() tokens is not cut."""
        cut = _across(sequence, end) if self._whole_media else None
        end = end if cut is None else cut.positions[0]
        touched = list(_touched(sequence, start, end))
        for item, _ in touched:
            if item.digest in self._kept:
                self._kept.move_to_end(item.digest)  # room is made by others
        for item, position in touched:
            if not self._use(item, plan):
                self.is_short = True
                return position
        return end

    def distrust(self, request: Request) -> None:
        """The model has made NaN of a request: vectors of its items are not used again."""
        self._distrusted.update(item.digest for item in request.parameters.media if item.digest in self._kept)

    def check_invariants(self) -> None:
        """Raises InvariantError where more vectors are kept than there is room for."""
        if self.num_vectors != sum(self._kept.values()) or self.num_vectors > self.capacity:
            raise InvariantError(f"{self.num_vectors} vectors are kept, there is room for {self.capacity}")
        if not self._in_use.items() <= self._kept.items():
            raise InvariantError("a plan computes with vectors that are not kept")
        if not self._distrusted <= self._kept.keys():
            raise InvariantError("vectors are distrusted that are not kept")

    def _use(self, item: MediaItem, plan: Plan) -> bool:
        """Has the plan keep an item's vectors; returns False, and changes nothing, if there is no room."""
        digest = item.digest
        size = self._kept.get(digest, len(item.positions))
        if digest in self._in_use:
            return True
        if self._has(digest):
            self.num_hits += 1
        else:
            if self._num_planned and not self._has_budget(size):
                return False
            if sum(self._in_use.values()) + size > self.capacity:
                return False
            if digest in self._kept:
                self._forget(digest, plan)
            self._make_room(size, plan)
            self._encode(item, plan)
        self._in_use[digest] = size
        return True

    def _has(self, digest: bytes) -> bool:
        return digest in self._kept and digest not in self._distrusted

    def _has_budget(self, size: int) -> bool:
        return self._num_planned + size <= self.budget

    def _make_room(self, size: int, plan: Plan) -> None:
        """Forgets the least recently used that the plan does not compute with."""
        while self.num_vectors + size > self.capacity:
            self._forget(next(digest for digest in self._kept if digest not in self._in_use), plan)

    def _forget(self, digest: bytes, plan: Plan) -> None:
        self.num_vectors -= self._kept.pop(digest)
        self._distrusted.discard(digest)
        plan.forgotten_media.append(digest)

    def _encode(self, item: MediaItem, plan: Plan) -> None:
        size = len(item.positions)
        plan.encode.append(item)
        self._kept[item.digest] = size
        self._num_planned += size
        self.num_vectors += size
        self.num_encoded += 1
        self.num_encoded_vectors += size


def _across(sequence: Sequence, end: int) -> MediaItem | None:
    """Returns the item that has positions before `end` and from there on; None: there is none."""
    for item in sequence.request.parameters.media:
        if item.positions[0] < end <= item.positions[-1]:
            return item
    return None


def _touched(sequence: Sequence, start: int, end: int) -> Iterator[tuple[MediaItem, int]]:
    """Yields the items of which a chunk computes a position, and their first positions there, in order."""
    for item in sequence.request.parameters.media:
        if item.positions[0] >= end:
            return
        if item.positions[-1] >= start:
            position = item.positions[bisect_left(item.positions, start)]
            if position < end:
                yield item, position
