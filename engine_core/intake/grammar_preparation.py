"""Grammars that the worker compiles before their requests may begin, so that no step waits for one.

A grammar that was asked for lately is not asked for again: the worker keeps more of them than this. If it has
dropped one all the same, it compiles it with the row that comes, and a step may wait. So it does for suspects
of a death of the engine (quarantine/), which must be known when they arrive, and run before all others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler

MAX_KNOWN = 32
"""Grammars that the worker is taken to have; it keeps twice as many."""


class Compiler(Protocol):
    """What compiles: the worker."""

    def compile_grammar(self, number: int, grammar: str) -> None:
        """Begins to compile a grammar; returns at once."""

    def take_compiled(self) -> Sequence[int]:
        """Returns the numbers of grammars that have been compiled, or cannot be, since the last call."""


class GrammarPreparation:
    """Adds requests to the scheduler: those whose grammar is being compiled, as ones that are preparing."""

    def __init__(self, scheduler: Scheduler, worker: Compiler) -> None:
        self._scheduler, self._worker = scheduler, worker
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._numbers: dict[bytes, int] = {}  # of grammars that are being compiled
        self._preparing: dict[int, list[Request]] = {}
        self._last_number = 0

    def add(self, request: Request) -> None:
        """Adds a request that the scheduler does not know."""
        grammar = request.parameters.grammar
        if not grammar:
            self._scheduler.add(request)
            return
        digest = blake2b(grammar.encode(), digest_size=16).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            self._scheduler.add(request)
            return
        if self._scheduler.quarantine.is_suspect(request.key):
            self._scheduler.add(request)
            return
        self._scheduler.add(request, prepared=False)
        if not request.num_live:
            return
        if digest not in self._numbers:
            self._last_number += 1
            self._numbers[digest] = self._last_number
            self._preparing[self._last_number] = []
            self._worker.compile_grammar(self._last_number, grammar)
        self._preparing[self._numbers[digest]].append(request)

    def review(self) -> None:
        """Lets requests begin whose grammars have been compiled."""
        if not self._preparing:
            return
        done = self._worker.take_compiled()
        for digest in [digest for digest, number in self._numbers.items() if number in done]:
            self._known[digest] = None
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            for request in self._preparing.pop(self._numbers.pop(digest)):
                if request.num_live:
                    self._scheduler.prepared(request)
