"""The waiting queue: what policies implement.

How much a sequence will have to compute depends on the prefix cache. It is counted once, when the sequence is
queued: to ask the cache again for all waiting sequences would cost a lookup for each of their blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import NamedTuple

from engine_core.errors import InvariantError
from engine_core.request import Request, Sequence


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
