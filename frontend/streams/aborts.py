"""Ends requests by their ids, wherever they are: in this frontend, at a core, or on their way to one.

A core answers between two steps and looks up every id in its step loop, so a tenant has one call at the cores
at a time: however many it sends, a step waits for the ids of one. Without authentication tenants are not told
apart, and calls do not wait for one another.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from frontend.auth.caller import scope
from frontend.streams.request_registry import RequestRegistry


class Cores(Protocol):
    """The part of EngineClient that ends requests."""

    async def abort_by_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Aborts requests of any frontend at every core; returns the ids that were in flight."""


class Aborts:
    """Ends requests by their ids. Belongs to the event loop's thread."""

    def __init__(self, registry: RequestRegistry, cores: Cores) -> None:
        self._registry = registry
        self._cores = cores
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by tenant

    async def abort(self, tenant: str | None, request_ids: Sequence[str]) -> list[str]:
        """Ends a tenant's requests; returns the ids that were in flight. Raises EngineNotReady."""
        members = {name: self._registry.members(scope(tenant, name)) for name in request_ids}
        wanted = [member for parts in members.values() for member in parts]
        unsent = self._registry.abort_unsent(wanted)
        others = [member for member in wanted if member not in unsent]
        known: list[str] = []
        if others:
            async with self._turn(tenant):
                known = await self._cores.abort_by_ids(others)
        aborted = unsent.union(known)
        return [name for name in request_ids if not aborted.isdisjoint(members[name])]

    @asynccontextmanager
    async def _turn(self, tenant: str | None) -> AsyncIterator[None]:
        if tenant is None:
            yield
            return
        async with self._turns.setdefault(tenant, asyncio.Lock()):
            yield
