"""Why requests wait: what keeps the first of the queue from beginning, and pauses by preemption.

All that waits in the queue is behind its first sequence, so one cause holds for all of them: the scheduler
names it once per step, and the time until its next decision counts for it. A request has the sums at its
arrival; when it begins, the differences are its causes. That costs O(1) per step and request. What is left of
its wait is the queue itself: the step that ran when it arrived, and sequences that were admitted before it.
A request whose adapter is not loaded, or whose prefix is being copied from another core, is not in the queue
yet: its time until then has the cause that a step has in which all that waits lacks a slot of an adapter, or
that of the transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from engine_core.queue.base import WaitingQueue, rows_of
from engine_core.request import Request, Sequence


class Cause(IntEnum):
    """Index of a cause in a message: see StepOutputs.started_waits_us."""

    ROWS = 0
    BLOCKS = 1
    BUDGET = 2
    TRIAL = 3
    ADAPTER = 4
    KV_TRANSFER = 5
    ENCODER = 6


NO_WAITS = (0.0,) * len(Cause)
"""Seconds by cause of a request that has not waited."""


class Pause(NamedTuple):
    """A request that had begun did not run, because others needed its blocks."""

    request: Request
    seconds: float


class WaitCauses:
    """The sums, and the pauses of requests since the last take_pauses(). Times are in seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._cause: Cause | None = None  # since the last decision
        self._sums = list(NO_WAITS)
        self._at_arrival: dict[Request, tuple[float, ...]] = {}  # that have not begun
        self._queued: dict[Request, None] = {}  # that take their turn from the next step on
        self._paused: dict[Request, float] = {}  # since when
        self._pauses: list[Pause] = []

    def step(self, now: float) -> None:
        """Begins a step: what was decided in the one before it has kept requests waiting until now."""
        if self._cause is not None:
            self._sums[self._cause] += max(now - self._now, 0.0)
        self._now, self._cause = now, None
        for request in self._queued:
            sums, waited = list(self._sums), max(now - request.arrival, 0.0)
            transfer = min(request.history.transfer, waited)
            sums[Cause.KV_TRANSFER] -= transfer
            if request.parameters.adapter is not None:
                sums[Cause.ADAPTER] -= waited - transfer
            self._at_arrival[request] = tuple(sums)
        self._queued.clear()

    def decide(
        self,
        waiting: WaitingQueue,
        free_rows: int,
        budget: int,
        *,
        isolates: bool,
        rows_needed: Callable[[Sequence], int] = rows_of,
        lacks_slot: bool = False,
        lacks_encoder: bool = False,
    ) -> None:
        """Names the cause for which requests wait after a plan. budget: tokens that the plan has left.
        isolates: a suspect of a death of the engine runs alone. rows_needed: returns the rows without which
        a sequence cannot begin. lacks_slot: all that waits lacks a slot of an adapter. lacks_encoder: an
        item of media found no room in the encoder's budget or cache."""
        if not len(waiting):
            return
        if isolates:
            self._cause = Cause.TRIAL
            return
        head = waiting.head()
        if not free_rows or (head is not None and rows_needed(head) > free_rows):
            self._cause = Cause.ROWS
        elif lacks_encoder:
            self._cause = Cause.ENCODER
        else:
            self._cause = Cause.BUDGET if budget <= 0 else Cause.ADAPTER if lacks_slot else Cause.BLOCKS

    def arrived(self, request: Request) -> None:
        """Registers a request that waits, from its arrival on."""
        self._at_arrival[request] = tuple(self._sums_at(request.arrival))

    def queued(self, request: Request) -> None:
        """Registers that a request takes its turn in the next step which was not in the queue, because its
        adapter was not loaded, if it has one, or because its prefix was being copied."""
        if request.parameters.adapter is not None or request.history.transfer:
            self._queued[request] = None

    @property
    def cause(self) -> Cause | None:
        """What the first of the queue lacked in the last step; None: nothing is known to be short."""
        return self._cause

    def waited(self, request: Request, now: float) -> tuple[float, ...]:
        """Returns for how long a request that has not begun has waited until now for each cause."""
        sums = self._sums_at(now)
        before = self._at_arrival.get(request, tuple(sums))
        return tuple(max(each - then, 0.0) for each, then in zip(sums, before, strict=True))

    def paused_for(self, request: Request, now: float) -> float:
        """Returns for how long a request has been preempted until now; 0: it is not."""
        since = self._paused.get(request)
        return 0.0 if since is None else max(now - since, 0.0)

    def began(self, request: Request) -> tuple[float, ...]:
        """Returns for how long a request that begins now has waited for each cause."""
        before = self._at_arrival.pop(request, tuple(self._sums))
        return tuple(max(now - then, 0.0) for now, then in zip(self._sums, before, strict=True))

    def paused(self, request: Request) -> None:
        """Registers that the last running sequence of a request was preempted."""
        self._paused[request] = self._now

    def resumed(self, request: Request) -> None:
        """Registers that a sequence of a request begins to run."""
        since = self._paused.pop(request, None)
        if since is not None:
            request.history.paused += self._now - since
            self._pauses.append(Pause(request, self._now - since))

    def ended(self, request: Request) -> None:
        """Registers the end of a request, which may be paused, or not have begun."""
        self._at_arrival.pop(request, None)
        self._queued.pop(request, None)
        self.resumed(request)

    def _sums_at(self, now: float) -> list[float]:
        sums = list(self._sums)
        if self._cause is not None:
            sums[self._cause] += max(now - self._now, 0.0)
        return sums

    def take_pauses(self) -> list[Pause]:
        """Returns the pauses that have ended since the last call."""
        pauses, self._pauses = self._pauses, []
        return pauses
