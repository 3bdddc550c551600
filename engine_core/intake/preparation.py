"""What the worker must have before a request may begin, so that no step waits for it: grammars and adapters.

A request that lacks something is added to the scheduler as one that is preparing, and takes its turn in the
queue when all of it is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from engine_core.errors import Refused
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler

MAX_KNOWN = 32
"""Grammars that the worker is taken to have; it keeps twice as many."""


class Supply(Protocol):
    """One kind of things that requests need."""

    def prepare(self, request: Request) -> bool:
        """Returns whether the worker has what the request needs; has it made otherwise. Called again while
        the request waits. Raises Refused where it cannot be made."""

    def review(self) -> bool:
        """Takes the worker's answers. Returns whether prepare() may now say something else of a request that
        waits. To be called in every step."""


class Preparation:
    """Adds requests to the scheduler, and lets them begin."""

    def __init__(
        self, scheduler: Scheduler, supplies: Sequence[Supply], refuse: Callable[[Request, Refused], None]
    ) -> None:
        """refuse: ends a request that the scheduler has, and tells its frontend why."""
        self._scheduler, self._supplies, self._refuse = scheduler, supplies, refuse
        self._preparing: dict[Request, None] = {}  # in the order of their arrival

    def add(self, request: Request) -> None:
        """Adds a request that the scheduler does not know."""
        try:
            is_ready = self._prepare(request)
        except Refused as refusal:
            self._scheduler.add(request, prepared=False)
            self._refuse(request, refusal)
            return
        if is_ready:
            self._scheduler.add(request)
            return
        self._scheduler.add(request, prepared=False)
        if request.num_live:
            self._preparing[request] = None

    def review(self) -> None:
        """Lets requests begin that have all that they need. To be called in every step."""
        if not any([supply.review() for supply in self._supplies]):
            return
        for request in list(self._preparing):
            try:
                if request.num_live and not self._prepare(request):
                    continue
                if request.num_live:
                    self._scheduler.prepared(request)
            except Refused as refusal:
                self._refuse(request, refusal)
            del self._preparing[request]

    def _prepare(self, request: Request) -> bool:
        return all([supply.prepare(request) for supply in self._supplies])  # all of them begin at once


class Compiler(Protocol):
    """What compiles grammars: the worker."""

    def compile_grammar(self, number: int, grammar: str) -> None:
        """Begins to compile a grammar; returns at once."""

    def take_compiled(self) -> Sequence[int]:
        """Returns the numbers of grammars that have been compiled, or cannot be, since the last call."""


class Grammars:
    """Grammars that the worker compiles. A Supply.

    One that was asked for lately is not asked for again: the worker keeps more of them than this. If it has
    dropped one all the same, it compiles it with the row that comes, and a step may wait. So it does for
    suspects of a death of the engine (quarantine/), which must be known when they arrive, and run before all
    others.
    """

    def __init__(self, scheduler: Scheduler, worker: Compiler) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._numbers: dict[bytes, int] = {}  # of grammars that are being compiled
        self._last_number = 0

    def prepare(self, request: Request) -> bool:
        grammar = request.parameters.grammar
        if not grammar:
            return True
        digest = blake2b(grammar.encode(), digest_size=16).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            return True
        if self._scheduler.quarantine.is_to_be_isolated(request.key):
            return True
        if digest not in self._numbers:
            self._last_number += 1
            self._numbers[digest] = self._last_number
            self._worker.compile_grammar(self._last_number, grammar)
        return False

    def review(self) -> bool:
        if not self._numbers:
            return False
        done = self._worker.take_compiled()
        for digest in [digest for digest, number in self._numbers.items() if number in done]:
            del self._numbers[digest]
            self._known[digest] = None
        while len(self._known) > max(MAX_KNOWN, len(done)):  # requests that wait for those are about to ask
            self._known.popitem(last=False)
        return bool(done)
