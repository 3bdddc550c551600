"""The waiting queue: what every policy implements.

How much a sequence will have to compute depends on the prefix cache. It is counted once, when the sequence is
queued: to ask the cache again for all waiting sequences would cost a lookup for each of their blocks.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

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


class WaitingQueue(Protocol):
    """Sequences that wait for a row and for blocks, in the order of a policy.

    A policy may depend on what was served, so it is told when each sequence starts and stops running.
    """

    num_tokens: int
    """Tokens to compute for all waiting sequences."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """Iterates over all waiting sequences, in any order."""

    def head(self) -> Sequence | None:
        """Returns the sequence that is next."""

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence that arrives."""

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence whose turn had come before, ahead of its equals."""

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is admitted or has ended."""

    def started(self, sequence: Sequence) -> None:
        """Registers that a sequence begins to run, from its num_computed_tokens on."""

    def stopped(self, sequence: Sequence) -> None:
        """Registers that a sequence stops running; its num_computed_tokens is what it has reached."""

    def step(self) -> None:
        """Registers a planned step, in which each running sequence gets a token."""

    def ahead(self, request: Request, mean_output: float) -> Ahead:
        """Returns what is ahead of a request that arrives now. mean_output: tokens per sequence."""

    def before(self, sequence: Sequence, mean_output: float) -> Ahead:
        """Returns what is expected to be admitted before a sequence that waits; as ahead(), for its place."""

    def share(self, tenant: str) -> Share:
        """Returns what a tenant has in the queue."""

    def share_beside(self, tenant: str, running: Collection[str]) -> float:
        """Returns the fraction of the engine, 0 to 1, that a tenant is entitled to among those that wait and
        those that run; 1: the policy knows no shares."""

    def claim(self, prompt: Sequence) -> float:
        """Returns the fraction of a step's tokens, 0 to 1, that the head may take from a running prompt."""

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError if the counts are wrong. num_running: sequences that run."""


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
