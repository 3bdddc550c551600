"""The orderly end of an engine core: its requests go on at other cores, which read its blocks.

the first signal    frontends are told; those that reach another core send their requests there
meanwhile           requests that no frontend moves run on, and blocks are leased (kv_transfer/)
the end             when nothing was in flight or leased for as long as a lease lasts, at the timeout, or
                    with the second signal
"""

from __future__ import annotations

import logging

from engine_core.admin.frontend_directory import FrontendDirectory
from engine_core.context import CoreContext
from engine_core.io.process_control import Stopped
from engine_core.kv_transfer.leases import LEASE_S, Leases
from pagewire.internal.v1.engine_pb2 import EngineMessage, Leaving

log = logging.getLogger(__name__)


class Drain:
    """All methods run in the step loop's thread. Times are in seconds on the core's clock."""

    def __init__(
        self, context: CoreContext, directory: FrontendDirectory, leases: Leases, timeout: float
    ) -> None:
        self._context, self._directory, self._leases, self._timeout = context, directory, leases, timeout
        self._ends_at: float | None = None  # None: it has not begun
        self._last_work = 0.0
        self._told: set[bytes] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the core is about to end."""
        return self._ends_at is not None

    def begin(self) -> None:
        """The core was asked to end. Idempotent."""
        if self._ends_at is not None:
            return
        now = self._context.clock()
        num_requests = len(self._context.scheduler.requests)
        self._ends_at, self._last_work = now + self._timeout, now
        if not (num_requests or len(self._leases)):
            self._ends_at = now
        log.info("draining: %d requests go on at other engine cores, if there are any", num_requests)

    def review(self, now: float) -> None:
        """Tells frontends. Raises Stopped when nothing needs this core any more."""
        if self._ends_at is None:
            return
        for frontend in self._directory.identities:
            if frontend not in self._told:
                self._told.add(frontend)
                self._context.send(frontend, EngineMessage(leaving=Leaving()))
        if self._context.scheduler.requests or len(self._leases):
            self._last_work = now
        if now >= self._ends_at or now - self._last_work >= LEASE_S:
            raise Stopped
