"""The adapters that the cores name: which callers may use them, and loading them at all cores.

A name is resolved once, when a request arrives: its request goes on with that digest, whatever the name means
later. Names of a core that is replaced are told to the next one, with their digests and those before: it
loads them when they are used.
"""

from collections.abc import Callable, Sequence
from pathlib import PurePath

from frontend.auth.caller import Caller
from frontend.auth.tokens import tenant_problem
from frontend.engine.core import Core
from frontend.engine.core_list import CoreQuestions
from frontend.errors import AdapterChanged, AdaptersDiffer, EngineRefused, InvalidRequest, ModelNotFound
from pagewire.checkpoints.paths import is_hub_name
from pagewire.internal.v1.engine_pb2 import (
    AdapterResult,
    AdapterTable,
    FrontendMessage,
    ListAdapters,
    NamedAdapter,
    UnloadAdapter,
    Utility,
    Welcome,
)
from pagewire.ipc.named_adapters import keep_former
from pagewire.limits import is_adapter_name


class AdapterCatalogue:
    """Adapters by name. Methods belong to the event loop's thread."""

    def __init__(self, questions: CoreQuestions, facts: Callable[[], Welcome | None]) -> None:
        """facts: returns what holds at every core."""
        self._questions, self._facts = questions, facts
        self._named: dict[str, NamedAdapter] = {}
        self._of_cores: dict[str, tuple[int, set[str]]] = {}  # address -> epoch, names

    def on_welcome(self, core: Core, welcome: Welcome) -> None:
        """Takes the names of a core, and tells a new one those that it lacks."""
        epoch, _ = self._of_cores.get(core.address, (0, set()))
        if epoch == welcome.epoch:
            self.on_table(core, welcome.adapters)
            return
        told = {each.name: _digests(each) for each in welcome.adapters.adapters}
        known = self._named.items()
        lacked = [adapter for name, adapter in known if _digests(adapter) - told.get(name, set())]
        if lacked:
            core.send(FrontendMessage(known_adapters=AdapterTable(epoch=welcome.epoch, adapters=lacked)))
        self._of_cores[core.address] = welcome.epoch, set()
        self._take(core, welcome.adapters)

    def on_table(self, core: Core, table: AdapterTable) -> None:
        """Takes the names of a core, or those that have changed."""
        _, names = self._of_cores.setdefault(core.address, (core.epoch, set()))
        gone = set(table.unnamed) if table.is_change else names - {each.name for each in table.adapters}
        for name in gone:
            self._named.pop(name, None)
        names -= gone
        self._take(core, table)

    def visible(self, caller: Caller) -> list[NamedAdapter]:
        """Returns the adapters that a caller may use, by name."""
        return [each for _, each in sorted(self._named.items()) if _may_use(each, caller)]

    def find(self, name: str, caller: Caller, field: str = "model") -> NamedAdapter:
        """Returns an adapter that a caller may use. field: has the name. Raises ModelNotFound."""
        adapter = self._named.get(name)
        if adapter is None or not _may_use(adapter, caller):
            raise ModelNotFound(name, field)
        return adapter

    async def resolve(self, name: str, digest: bytes, caller: Caller, field: str = "model") -> NamedAdapter:
        """Returns the adapter that a request names; loads it if it is in --lora-folder and has not been named
        before. digest: the one that its broken stream had; empty: the one of now. field: has the name. Raises
        ModelNotFound, AdapterChanged, EngineRefused, EngineNotReady."""
        if name not in self._named:
            facts = self._facts()
            folder = facts.lora_folder if facts is not None else ""
            if not folder or not is_adapter_name(name) or not caller.may_use_adapter(name):
                raise ModelNotFound(name, field)
            await self._load_unnamed(name, field)
        adapter = self.find(name, caller, field)
        if digest in (b"", adapter.digest):
            return adapter
        for former in adapter.former:
            if former.digest == digest:
                return former
        raise AdapterChanged

    async def load(self, name: str, source: str, *, pinned: bool, tenants: Sequence[str]) -> NamedAdapter:
        """Loads what a folder holds at all cores, under a name. source: absolute, below --lora-folder, or a
        name on the Hugging Face Hub; "": the subfolder with that name. Raises InvalidRequest, EngineRefused,
        EngineNotReady, AdaptersDiffer."""
        if not is_adapter_name(name):
            problem = "must be letters, digits and ._:@- behind the first of them, at most 128"
            raise InvalidRequest({"name": problem})
        problems = {f"tenants[{place}]": tenant_problem(each) for place, each in enumerate(tenants)}
        if found_problems := {path: problem for path, problem in problems.items() if problem}:
            raise InvalidRequest(found_problems)
        facts = self._facts()
        folder = facts.lora_folder if facts is not None else ""
        wanted = NamedAdapter(name=name, pinned=pinned, tenants=tenants)
        wanted.source = source if is_hub_name(source) else str(PurePath(folder, source or name))
        call = Utility(load_adapter=wanted)
        answers = await self._questions.of_all(call, seconds=None)  # others may be loaded before it
        found = [_done(result.adapter) for _, result in answers]
        if len({each.digest for each in found}) > 1:
            raise AdaptersDiffer
        self._put(found[0])
        return found[0]

    async def unload(self, name: str) -> None:
        """Takes a name away at all cores; returns when no request has the adapter any more. Raises
        ModelNotFound, EngineNotReady."""
        if name not in self._named:
            raise ModelNotFound(name, "name")
        unloaded = self._named[name]
        call = Utility(unload_adapter=UnloadAdapter(name=name))
        answers = await self._questions.of_all(call, seconds=None)
        # The cores' tables have taken the name away before; by now it may be that of another load.
        if all(result.adapter.reason == "ADAPTER_NOT_FOUND" for _, result in answers):
            if self._named.get(name) is unloaded:
                del self._named[name]
            raise ModelNotFound(name, "name")

    async def listed(self) -> list[NamedAdapter]:
        """Returns all adapters, by name, loaded where any core has them, with the requests of all cores."""
        found: dict[str, NamedAdapter] = {}
        for _, result in await self._questions.of_all(Utility(list_adapters=ListAdapters())):
            for each in result.adapters.adapters:
                known = found.setdefault(each.name, each)
                if known is not each:
                    known.loaded |= each.loaded
                    known.requests += each.requests
        return [found[name] for name in sorted(found)]

    async def _load_unnamed(self, name: str, field: str) -> None:
        try:
            await self.load(name, "", pinned=False, tenants=())
        except EngineRefused as error:
            if error.reason in ("ADAPTER_NOT_FOUND", "ADAPTER_NAME_IN_USE"):
                raise ModelNotFound(name, field) from error
            for text in error.violations.values():
                raise EngineRefused(error.code, error.reason, f"{field} {text}", field) from error
            raise

    def _take(self, core: Core, table: AdapterTable) -> None:
        _, names = self._of_cores[core.address]
        for adapter in table.adapters:
            names.add(adapter.name)
            self._put(adapter)

    def _put(self, adapter: NamedAdapter) -> None:
        known = self._named.get(adapter.name)
        if known == adapter:  # as most are of a table that has all
            return
        if known is not None:
            keep_former(adapter, [known, *known.former])
        self._named[adapter.name] = adapter


def _may_use(adapter: NamedAdapter, caller: Caller) -> bool:
    shared = (
        not adapter.tenants or caller.is_admin or caller.tenant is None or caller.tenant in adapter.tenants
    )
    return shared and caller.may_use_adapter(adapter.name)


def _digests(adapter: NamedAdapter) -> set[bytes]:
    """Returns the digests of all adapters that a name stands for, or stood for before."""
    return {adapter.digest, *(each.digest for each in adapter.former)}


def _done(result: AdapterResult) -> NamedAdapter:
    if result.problem:
        raise EngineRefused(result.code, result.reason, result.problem, result.field)
    return result.adapter
