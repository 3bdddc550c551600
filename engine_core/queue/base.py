"""The waiting queue: what policies implement, and the policy that serves the first that came.

How much a sequence will have to compute depends on the prefix cache. It is counted once, when the sequence is
queued: to ask the cache again for all waiting sequences would cost a lookup for each of their blocks.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from engine_core.errors import InvariantError
from engine_core.request import Request, Sequence

FAIR, FIRST_COME = "fair", "fcfs"
"""Names of --policy."""
LOOK_AHEAD = 256
"""Sequences, of each tenant where the policy tells them apart, at which look_ahead() stops."""


class Ahead(NamedTuple):
    """What is expected to be admitted before a request that arrives now."""

    sequences: float  # with those that fork from them
    tokens: float  # to compute for them before they make their first token


class Share(NamedTuple):
    """What a tenant has in the queue, and the share that it is entitled to."""

    part: float
    """Fraction of the whole, 0 to 1, among the tenants that wait now; 0: the policy knows no shares."""
    sequences: int
    tokens: int  # to compute for them


class WaitingQueue(ABC):
    """Sequences that wait for a row and for blocks, in the order of a policy.

    A policy may depend on what was served, so it is told when each sequence starts and stops running. The
    methods that are not abstract are those of a policy that tells no tenants apart.
    """

    num_tokens = 0
    """Tokens to compute for all waiting sequences."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Sequence]:
        """Iterates over all waiting sequences, in any order."""

    @abstractmethod
    def head(self) -> Sequence | None:
        """Returns the sequence that is next."""

    @abstractmethod
    def look_ahead(self) -> Iterator[Sequence]:
        """Iterates over the sequences that are next, about in the order in which they are: where many wait,
        over some of them."""

    @abstractmethod
    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence that arrives."""

    @abstractmethod
    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence whose turn had come before, ahead of its equals."""

    @abstractmethod
    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is admitted or has ended."""

    @abstractmethod
    def ahead(self, request: Request, mean_output: float, waiting: Sequence | None = None) -> Ahead:
        """Returns what is expected to be admitted before a request that arrives now, or before a sequence of
        it that waits. mean_output: tokens per sequence."""

    def started(self, sequence: Sequence) -> None:  # noqa: B027
        """Registers that a sequence begins to run, from its num_computed_tokens on."""

    def stopped(self, sequence: Sequence) -> None:  # noqa: B027
        """Registers that a sequence stops running; its num_computed_tokens is what it has reached."""

    def step(self) -> None:  # noqa: B027
        """Registers a planned step, in which each running sequence gets a token."""

    def share(self, tenant: str) -> Share:
        """Returns what a tenant has in the queue, in all classes, and the share that it is entitled to."""
        return Share(0.0, 0, 0)

    def share_beside(self, tenant: str, running: Collection[str]) -> float:
        """Returns the fraction of the engine, 0 to 1, that a tenant is entitled to among those that wait and
        those that run."""
        return 1.0

    def claim(self, prompt: Sequence) -> float:
        """Returns the fraction of a step's tokens, 0 to 1, that the head may take from a running prompt."""
        return 0.0

    @abstractmethod
    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError if the counts are wrong. num_running: sequences that run. Cost: all waiting
        sequences, all tenants."""


def rows_of(sequence: Sequence) -> int:
    """Returns the rows that a waiting sequence takes when it is admitted: its own, and those of siblings that
    fork from it."""
    return 1 + (len(sequence.request.forking) if sequence.leads else 0)


def check_counts(uncached: dict[Sequence, int], num_tokens: int) -> None:
    """Raises InvariantError unless num_tokens is what the sequences have to compute together."""
    if num_tokens != sum(uncached.values()):
        raise InvariantError(f"{num_tokens} tokens wait, but {sum(uncached.values())} are counted")
    if not all(0 < tokens <= sequence.num_tokens for sequence, tokens in uncached.items()):
        raise InvariantError("a waiting sequence counts for more tokens than it has, or for none")


class FirstComeQueue(WaitingQueue):
    """A queue in order of arrival, which ignores tenants and classes. All but iteration is O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, int] = OrderedDict()  # sequence -> tokens to compute for it
        self._rows: dict[Sequence, int] = {}  # that it takes, with those that fork from it
        self._num_rows = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def head(self) -> Sequence | None:
        return next(iter(self._queue), None)

    def look_ahead(self) -> Iterator[Sequence]:
        return islice(self._queue, LOOK_AHEAD)

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        self._queue[sequence] = uncached = sequence.num_tokens - num_cached_tokens
        self.num_tokens += uncached
        self._rows[sequence] = rows_of(sequence)
        self._num_rows += self._rows[sequence]

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        self.add(sequence, num_cached_tokens)
        self._queue.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        self.num_tokens -= self._queue.pop(sequence)
        self._num_rows -= self._rows.pop(sequence)

    def ahead(self, request: Request, mean_output: float, waiting: Sequence | None = None) -> Ahead:
        if waiting is None:
            return Ahead(self._num_rows, self.num_tokens)
        earlier = list(takewhile(lambda other: other is not waiting, self._queue))
        rows, tokens = map(self._rows.__getitem__, earlier), map(self._queue.__getitem__, earlier)
        return Ahead(sum(rows), sum(tokens))

    def check_invariants(self, num_running: int) -> None:
        check_counts(self._queue, self.num_tokens)
