"""The waiting queue: what every policy offers, and the plain one, first come, first served.

What a sequence will have to compute depends on the prefix cache. It is counted as it was when the
sequence came: to ask the cache again for all that wait would cost a lookup for every block of them.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from engine_core.errors import InvariantError
from engine_core.request import Request, Sequence


class Ahead(NamedTuple):
    """What is expected to be admitted before a request that arrives now."""

    sequences: float
    tokens: float  # to compute for them before they make their first token


class Share(NamedTuple):
    """What a tenant has of the queue, and what is due to it."""

    part: float
    """Of the whole, 0 to 1, beside those that wait now; 0: nothing is anybody's due."""
    sequences: int
    tokens: int  # to compute for them


class WaitingQueue(Protocol):
    """Sequences that wait for a row and for blocks, in the order of a policy.

    A policy may look at what was served: so it is told of every run, from row to row's end.
    """

    num_tokens: int
    """Tokens to compute for all that wait."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in any order."""

    def head(self) -> Sequence | None:
        """The one whose turn it is."""

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence arrives."""

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence that had its turn already comes back: before its equals."""

    def remove(self, sequence: Sequence) -> None:
        """A sequence is admitted or has ended."""

    def started(self, sequence: Sequence) -> None:
        """A sequence begins to run, from its num_computed_tokens on."""

    def stopped(self, sequence: Sequence) -> None:
        """A sequence runs no longer; its num_computed_tokens is still what it has reached."""

    def step(self) -> None:
        """A step was planned: everybody who runs gets a token."""

    def ahead(self, request: Request, mean_output: float) -> Ahead:
        """What comes before a request if it arrives now. mean_output: tokens that a sequence makes."""

    def share(self, tenant: str) -> Share:
        """What a tenant has of the queue."""

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError when the books do not balance. num_running: sequences that run."""


class FirstComeQueue:
    """First come, first served, whoever it is. Everything but iteration is O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, int] = OrderedDict()  # and the tokens to compute for it
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def head(self) -> Sequence | None:
        """The one that has waited longest."""
        return next(iter(self._queue), None)

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence arrives."""
        self._queue[sequence] = uncached = sequence.num_tokens - num_cached_tokens
        self.num_tokens += uncached

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """A sequence that had its turn already comes back."""
        self.add(sequence, num_cached_tokens)
        self._queue.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is admitted or has ended."""
        self.num_tokens -= self._queue.pop(sequence)

    def started(self, sequence: Sequence) -> None:
        """Nobody is asked what he has had."""

    def stopped(self, sequence: Sequence) -> None:
        """Nobody is asked what he has had."""

    def step(self) -> None:
        """Nobody is asked what he has had."""

    def ahead(self, request: Request, mean_output: float) -> Ahead:
        """Everybody who is there."""
        return Ahead(len(self._queue), self.num_tokens)

    def share(self, tenant: str) -> Share:
        """Nobody is asked whose he is."""
        return Share(0.0, 0, 0)

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError when the count is not that of the sequences."""
        check_counts(self._queue, self.num_tokens)


def check_counts(uncached: dict[Sequence, int], num_tokens: int) -> None:
    """Raises InvariantError when num_tokens is not what the sequences have to compute."""
    if num_tokens != sum(uncached.values()):
        raise InvariantError(f"{num_tokens} tokens wait, but {sum(uncached.values())} are counted")
    if not all(0 < tokens <= sequence.num_tokens for sequence, tokens in uncached.items()):
        raise InvariantError("a waiting sequence counts for more tokens than it has, or for none")
