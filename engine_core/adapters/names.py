"""The names of adapters, which all frontends are told: loading, replacing and unloading them.

A name stands for one digest at a time. Frontends are told of another adapter under a name when the worker has
it: requests that were sent before keep theirs, which stays loaded until they have ended. A name keeps what it
stood for before (NamedAdapter.former) until it is unloaded, for streams that are continued. Once in a step,
frontends hear what has changed: names, and which adapters the worker holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from engine_core.adapters.memory import AdapterMemory
from engine_core.errors import Code, Refused
from pagewire.internal.v1.engine_pb2 import AdapterResult, AdapterTable, NamedAdapter
from pagewire.internal.v1.worker_pb2 import AdapterLoaded
from pagewire.ipc.named_adapters import keep_former
from pagewire.limits import MAX_ADAPTERS, is_adapter_name

Answer = Callable[[AdapterResult], None]


class AdapterNames:
    """Named adapters of a core."""

    def __init__(
        self, memory: AdapterMemory, caveat: str, announce: Callable[[AdapterTable], None], epoch: int
    ) -> None:
        """caveat: why the worker takes no adapters; "": it does. announce: sends to all frontends."""
        self._memory, self._caveat, self._announce, self._epoch = memory, caveat, announce, epoch
        self._named: dict[str, NamedAdapter] = {}
        self._changed: set[str] = set()  # names, since the last announcement
        self._pins: Counter[bytes] = Counter()  # names that are pinned, by digest
        self._unloading: list[tuple[NamedAdapter, Answer]] = []
        self._downloads: list[tuple[Future[Path], NamedAdapter, Answer]] = []
        memory.on_lost = self._lost

    def __len__(self) -> int:
        return len(self._named)

    @property
    def is_changing(self) -> bool:
        """Whether an unload() is not answered yet, or something is downloaded."""
        return bool(self._unloading or self._downloads)

    def load(self, wanted: NamedAdapter, answer: Answer) -> None:
        """Loads an adapter and names it. One with a digest is named only if it has no name yet, and loaded
        when a request needs it: it was loaded by a core before this one. Where the name stands for another
        one here, it is what the name stood for before."""
        try:
            self._check(wanted)
            known = self._named.get(wanted.name)
            if wanted.digest and known is not None:
                if keep_former(known, [wanted, *wanted.former]):
                    self._changed.add(known.name)
                answer(AdapterResult(adapter=known))
            elif wanted.digest:
                self._name(wanted)
                answer(AdapterResult(adapter=wanted))
            elif (folder := self._memory.sources.hub.begin(wanted.source)) is not None:
                self._downloads.append((folder, wanted, answer))
            else:
                self._load(wanted, answer)
        except Refused as refusal:
            answer(_refusal(wanted, refusal))

    def _load(self, wanted: NamedAdapter, answer: Answer) -> None:
        self._memory.load(wanted.source, lambda loaded: self._loaded(wanted, loaded, answer))

    def take_downloads(self) -> None:
        """Loads what has been downloaded. To be called in every step, before loads are begun."""
        for download in [each for each in self._downloads if each[0].done()]:
            self._downloads.remove(download)
            folder, wanted, answer = download
            try:
                wanted.source = str(folder.result())
                self._load(wanted, answer)
            except Refused as refusal:
                answer(_refusal(wanted, refusal))

    def take_over(self, known: AdapterTable) -> None:
        """Names adapters as cores before this one did, as far as it has no others of their names."""
        for adapter in known.adapters:
            self.load(adapter, _ignore)

    def unload(self, name: str, answer: Answer) -> None:
        """Takes a name away. Answers when no request has the adapter any more."""
        adapter = self._put(name, None) if name in self._named else None
        if adapter is None:
            refusal = Refused("name", "is not that of an adapter", "ADAPTER_NOT_FOUND", Code.NOT_FOUND)
            answer(_refusal(NamedAdapter(name=name), refusal))
            return
        self._unloading.append((adapter, answer))

    def review(self) -> None:
        """Announces what has changed, and drops adapters that are unloaded and that no request has any more.
        To be called in every step."""
        if self._unloading:
            self._announce_changes()  # a name is taken away before that is answered
            self._end_unloads()
        self._announce_changes()

    def _end_unloads(self) -> None:
        kept, uses = {each.digest for each in self._named.values()}, self._memory.uses()
        for unloaded in [
            each for each in self._unloading if each[0].digest in kept or not uses[each[0].digest]
        ]:
            self._unloading.remove(unloaded)
            adapter, answer = unloaded
            if adapter.digest not in kept:
                self._memory.drop(adapter.digest)
            answer(AdapterResult(adapter=adapter))

    def table(self, *, with_use: bool = False) -> AdapterTable:
        """Returns all adapters. with_use: also whether those with names are loaded, and how many requests
        have them."""
        table = AdapterTable(
            epoch=self._epoch,
            adapters=[self._named[name] for name in sorted(self._named)],
            held_digests=b"".join(self._memory),
        )
        if with_use:
            uses = self._memory.uses()
            for each in table.adapters:
                each.loaded, each.requests = each.digest in self._memory, uses[each.digest]
        return table

    def _check(self, wanted: NamedAdapter) -> None:
        """Raises Refused."""
        if self._caveat:
            raise Refused(
                "", f"the worker takes no adapters: {self._caveat}", "FEATURE_UNSUPPORTED", Code.UNIMPLEMENTED
            )
        if not is_adapter_name(wanted.name):
            raise Refused("name", "is not a valid name of an adapter")
        known = self._named.get(wanted.name)
        if known is None and len(self._named) >= MAX_ADAPTERS:
            raise Refused(
                "name",
                f"would be one of more than {MAX_ADAPTERS}: unload others",
                "TOO_MANY_ADAPTERS",
                Code.RESOURCE_EXHAUSTED,
            )
        if known is not None and sorted(known.tenants) != sorted(wanted.tenants):
            text = "is an adapter of other tenants: unload it first"
            raise Refused("name", text, "ADAPTER_NAME_IN_USE", Code.ALREADY_EXISTS)

    def _loaded(self, wanted: NamedAdapter, loaded: AdapterLoaded, answer: Answer) -> None:
        try:
            if loaded.problem:
                raise Refused("source", f"cannot be loaded: {loaded.problem}", "ADAPTER_INVALID")
            self._check(wanted)  # another call may have named it meanwhile
        except Refused as refusal:
            answer(_refusal(wanted, refusal))
            return
        for field in ("digest", "rank", "bytes", "base", "virtual_tokens"):
            setattr(wanted, field, getattr(loaded, field))
        wanted.invocation_token_ids[:], wanted.modules[:] = loaded.invocation_token_ids, loaded.modules
        self._name(wanted)
        answer(AdapterResult(adapter=wanted))

    def _name(self, adapter: NamedAdapter) -> None:
        if (known := self._named.get(adapter.name)) is not None:
            keep_former(adapter, [known, *known.former])
        self._put(adapter.name, adapter)

    def _lost(self, digest: bytes) -> None:
        """Forgets names of an adapter that its folder does not hold any more: the next request finds what it
        holds now. Those of some tenants stay: a request of any other tenant would load it for all."""
        lost = [each for each in self._named.values() if each.digest == digest]
        for each in lost:
            if not each.pinned and not each.tenants:
                self._put(each.name, None)

    def _put(self, name: str, adapter: NamedAdapter | None) -> NamedAdapter | None:
        """Gives a name to an adapter, or takes it away; returns the adapter that had it."""
        before = self._named.pop(name, None)
        if adapter is not None:
            self._named[name] = adapter
        for each, change in ((before, -1), (adapter, 1)):
            if each is not None and each.pinned:
                self._pins[each.digest] += change
                self._memory.pin(each.digest, self._pins[each.digest] > 0)
        self._changed.add(name)
        return before

    def _announce_changes(self) -> None:
        if not self._changed and not self._memory.changed:
            return
        held = sorted(self._memory.changed)
        named = [name for name in sorted(self._changed) if name in self._named]
        table = AdapterTable(
            epoch=self._epoch,
            is_change=True,
            adapters=[self._named[name] for name in named],
            unnamed=sorted(self._changed.difference(named)),
            held_digests=b"".join(digest for digest in held if digest in self._memory),
            dropped_digests=b"".join(digest for digest in held if digest not in self._memory),
        )
        self._changed.clear()
        self._memory.changed.clear()
        self._announce(table)


def _ignore(result: AdapterResult) -> None:
    """Takes the answer to what nothing waits for."""


def _refusal(adapter: NamedAdapter, refusal: Refused) -> AdapterResult:
    return AdapterResult(
        adapter=adapter,
        problem=refusal.message,
        code=refusal.code,
        reason=refusal.reason,
        field=refusal.field,
    )
