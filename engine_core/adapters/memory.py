"""What the worker holds of adapters, by digest: least recently used first out, within --lora-memory bytes.

Adapters are loaded one after another, in the order in which requests first lacked them, in turns with those
that load() was called for. One that requests in flight have, or that is pinned, is not dropped; where that
leaves no room for the first one that is lacked, requests that come later wait behind it, also those whose
adapter is loaded: so it gets room when those before it have ended. One that cannot fit beside those that are
pinned is refused by the worker. One whose size is not known is loaded first, and dropped if there is no room
for it.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, Protocol

from engine_core.adapters.sources import AdapterSources
from engine_core.errors import Code, Refused
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import AdapterUse
from pagewire.internal.v1.worker_pb2 import AdapterLoaded


class AdapterWorker(Protocol):
    """What loads adapters: the worker."""

    def load_adapter(self, number: int, source: str, digest: bytes, max_bytes: int) -> None:
        """Begins to load an adapter; returns at once. See worker.proto."""

    def drop_adapter(self, digest: bytes) -> None:
        """Has an adapter forgotten."""

    def take_adapters(self) -> Sequence[AdapterLoaded]:
        """Returns the answers to load_adapter() since the last call."""


class _Load(NamedTuple):
    number: int
    source: str
    digest: bytes  # expected; empty: any
    done: list[Callable[[AdapterLoaded], None]]  # of the calls of load(); empty: requests lack it


class AdapterMemory:
    """Adapters of the worker. A Supply of intake/preparation.py: requests begin when theirs are loaded."""

    def __init__(
        self,
        scheduler: Scheduler,
        worker: AdapterWorker,
        sources: AdapterSources,
        capacity: int,
        held: Iterable[AdapterLoaded] = (),
    ) -> None:
        """capacity: bytes. held: what an adopted worker has."""
        self._scheduler, self._worker, self.sources, self.capacity = scheduler, worker, sources, capacity
        self.pinned: set[bytes] = set()
        """Digests of adapters that stay loaded while no request has them."""
        self.changed: set[bytes] = set()
        """Digests of adapters that were loaded or dropped; the reader clears it."""
        self.on_lost: Callable[[bytes], None] = lambda digest: None
        """Called with the digest of an adapter that its folder does not hold any more."""
        self._sizes = {each.digest: each.bytes for each in held}  # of all that were loaded so far
        self._loaded: OrderedDict[bytes, None] = OrderedDict.fromkeys(self._sizes)  # by last use
        self._wanted: OrderedDict[bytes, str] = OrderedDict()  # digests that are lacked -> source
        self._ordered: dict[tuple[str, bytes], _Load] = {}  # that load() was called for, by source and digest
        self._loading: _Load | None = None
        self._granted: set[bytes] = set()
        self._failed: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}  # what each source held when it was last loaded
        self._unneeded: set[bytes] = set()  # to be dropped when the load in progress has ended
        self._numbers = count(1)
        self._is_full = False
        self._is_due = False
        self._was_ordered = False  # the last load that began
        self._num_ended = 0
        self.num_loaded = self.num_failed = self.num_dropped = 0
        """Loads that succeeded and that did not, and adapters that made room for others, since the start."""
        self._make_room(0)  # the last core may not have heard how large the last one is

    @property
    def is_loading(self) -> bool:
        """Whether an answer of the worker is to come."""
        return self._loading is not None

    @property
    def num_bytes(self) -> int:
        """Bytes of all adapters that are loaded."""
        return sum(self._sizes[digest] for digest in self._loaded)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._loaded

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def uses(self) -> Counter[bytes]:
        """Returns how many requests in flight have an adapter, by digest. Cost: all requests."""
        adapters = (each.parameters.adapter for each in self._scheduler.requests)
        return Counter(adapter.digest for adapter in adapters if adapter is not None)

    def prepare(self, request: Request) -> bool:
        """Returns whether the request's adapter is loaded, if it has one; has it loaded otherwise. Raises
        Refused where it cannot be."""
        adapter = request.parameters.adapter
        if adapter is None:
            return True
        digest = adapter.digest
        if digest in self._failed:
            raise Refused("adapter", self._failed[digest], "ADAPTER_CHANGED", Code.FAILED_PRECONDITION)
        if digest in self._loaded and (digest in self._granted or digest in self.pinned or not self._is_full):
            self._loaded.move_to_end(digest)
            return True
        if digest not in self._wanted:
            self._want(adapter)
        return False

    def review(self) -> bool:
        """Takes the worker's answers, and goes on with what is lacked. Returns whether prepare() may now say
        something else of requests that wait."""
        self._granted.clear()
        self._failed.clear()
        for answer in self._worker.take_adapters():
            self._take(answer)
        if (self._wanted or self._ordered) and (
            self._is_due or self._num_ended != self._scheduler.states.num_ended
        ):
            self._is_due, self._num_ended = False, self._scheduler.states.num_ended
            self._advance()
        return bool(self._granted or self._failed)

    def load(self, source: str, done: Callable[[AdapterLoaded], None], digest: bytes = b"") -> None:
        """Loads what a folder holds, once for all calls that wait for it. done: takes the worker's answer.
        Raises Refused."""
        source = self.sources.check(source)
        if not os.path.exists(source):  # False for a name that is too long
            raise Refused("source", "is not there", "ADAPTER_NOT_FOUND", Code.NOT_FOUND)
        load = self._ordered.get((source, digest))
        if load is None:
            load = self._ordered[source, digest] = _Load(next(self._numbers), source, digest, [])
            self._is_due = True
        load.done.append(done)

    def pin(self, digest: bytes, is_pinned: bool) -> None:
        """Sets whether an adapter stays loaded while no request has it."""
        (self.pinned.add if is_pinned else self.pinned.discard)(digest)
        self._is_due = True

    def drop(self, digest: bytes) -> None:
        """Drops an adapter that no request in flight has. Waits for the load in progress: where that loads
        the same one, the worker would drop what its answer says it holds."""
        if self._loading is not None:
            self._unneeded.add(digest)
        elif digest in self._loaded:
            del self._loaded[digest]
            self.changed.add(digest)
            self._worker.drop_adapter(digest)

    def _want(self, adapter: AdapterUse) -> None:
        """Raises Refused."""
        source = adapter.source
        if adapter.digest not in self._loaded:
            try:
                source = self.sources.check(source)
            except Refused as refusal:
                if not refusal.field:
                    raise
                why = f"cannot be loaded any more: its {refusal.message}"
                raise Refused("adapter", why, "ADAPTER_CHANGED", Code.FAILED_PRECONDITION) from refusal
        self._wanted[adapter.digest] = source
        self._is_due = True

    def _advance(self) -> None:
        """Begins the next load: what load() was called for and what requests lack in turns."""
        if not self._was_ordered:
            self._begin_ordered()
        self._grant()
        self._begin_ordered()

    def _begin_ordered(self) -> None:
        if self._ordered and self._loading is None:
            self._begin(self._ordered.pop(next(iter(self._ordered))))

    def _grant(self) -> None:
        """Grants adapters that are loaded, in their order, and begins to load the first that is not."""
        while self._wanted:
            digest, source = next(iter(self._wanted.items()))
            if digest not in self._loaded:
                if self._loading is not None:
                    return
                if digest in self.pinned or self._is_awaited(digest):
                    size = self._sizes.get(digest, 0)
                    self._is_full = size <= self._max_bytes(digest) and not self._make_room(size)
                    if not self._is_full:
                        self._begin(_Load(next(self._numbers), source, digest, []))
                    return
            else:
                self._granted.add(digest)
            del self._wanted[digest]
        self._is_full = False

    def _begin(self, load: _Load) -> None:
        self._loading, self._was_ordered = load, bool(load.done)
        self.sources.begin(load.source)
        max_bytes = self._max_bytes(load.digest or self._digests.get(load.source, b""))
        self._worker.load_adapter(load.number, load.source, load.digest, max(max_bytes, 0))

    def _take(self, answer: AdapterLoaded) -> None:
        load = self._loading
        if load is None or load.number != answer.number:
            return
        self._loading, self._is_due = None, True
        self.sources.end(load.source)
        unneeded, self._unneeded = self._unneeded - {answer.digest}, set()
        for digest in unneeded - self._used() - self.pinned:
            self.drop(digest)
        max_bytes = max(self._max_bytes(answer.digest), 0)
        is_new = answer.digest not in self._loaded  # not what the source held before
        if is_new and not answer.problem and answer.bytes > max_bytes:
            answer.problem = f"it takes {answer.bytes} bytes of memory, of {max_bytes} that it may have"
        if is_new and answer.problem and answer.digest:  # a rank may have loaded it all the same
            self._worker.drop_adapter(answer.digest)
        if answer.problem:
            self.num_failed += 1
            if load.digest in self._wanted:
                del self._wanted[load.digest]
                self._failed[load.digest] = f"cannot be loaded any more: {answer.problem}"
                self.on_lost(load.digest)
        else:
            self.num_loaded += 1
            self._sizes[answer.digest], self._digests[load.source] = answer.bytes, answer.digest
            fits = answer.digest in self._loaded or self._make_room(answer.bytes)
            self._loaded[answer.digest] = None
            self.changed.add(answer.digest)
            if not fits:
                self.drop(answer.digest)
        for done in load.done:
            done(answer)

    def _make_room(self, size: int) -> bool:
        """Drops what was used least recently, as far as it must and may; returns whether there is room."""
        left = self.capacity - self.num_bytes - size
        if left >= 0:
            return True
        kept = self._used() | self.pinned
        for digest in [each for each in self._loaded if each not in kept]:
            self.num_dropped += 1
            self.drop(digest)
            left += self._sizes[digest]
            if left >= 0:
                return True
        return False

    def _used(self) -> set[bytes]:
        """Returns the digests that requests have which may have begun."""
        states = self._scheduler.states
        begun = (each.parameters.adapter for each in self._scheduler.requests if each not in states.preparing)
        return {adapter.digest for adapter in begun if adapter is not None} | self._granted

    def _is_awaited(self, digest: bytes) -> bool:
        waiting = (each.parameters.adapter for each in self._scheduler.states.preparing)
        return any(adapter is not None and adapter.digest == digest for adapter in waiting)

    def _max_bytes(self, digest: bytes) -> int:
        """Returns what an adapter may take beside others that are pinned; below 0 if those exceed it all."""
        return self.capacity - sum(self._sizes.get(each, 0) for each in self.pinned - {digest})
