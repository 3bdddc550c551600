"""The queues of --policy: first come first served, or fair shares."""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import takewhile

from engine_core.queue.base import Ahead, Share, WaitingQueue, check_counts, rows_of
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Weights
from engine_core.request import Request, Sequence

FAIR, FIRST_COME = "fair", "fcfs"


class FirstComeQueue:
    """A WaitingQueue in order of arrival, which ignores tenants and classes. All but iteration is O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, int] = OrderedDict()  # sequence -> tokens to compute for it
        self._rows: dict[Sequence, int] = {}  # that it takes, with those that fork from it
        self._num_rows = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def head(self) -> Sequence | None:
        """Returns the sequence that has waited longest."""
        return next(iter(self._queue), None)

    def add(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence that arrives."""
        self._queue[sequence] = uncached = sequence.num_tokens - num_cached_tokens
        self.num_tokens += uncached
        self._rows[sequence] = rows_of(sequence)
        self._num_rows += self._rows[sequence]

    def add_front(self, sequence: Sequence, num_cached_tokens: int) -> None:
        """Queues a sequence whose turn had come before, ahead of all others."""
        self.add(sequence, num_cached_tokens)
        self._queue.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is admitted or has ended."""
        self.num_tokens -= self._queue.pop(sequence)
        self._num_rows -= self._rows.pop(sequence)

    def started(self, sequence: Sequence) -> None:
        """Does nothing: the order does not depend on what was served."""

    def stopped(self, sequence: Sequence) -> None:
        """Does nothing: the order does not depend on what was served."""

    def step(self) -> None:
        """Does nothing: the order does not depend on what was served."""

    def ahead(self, request: Request, mean_output: float) -> Ahead:
        """Returns all that waits."""
        return Ahead(self._num_rows, self.num_tokens)

    def before(self, sequence: Sequence, mean_output: float) -> Ahead:
        """Returns what has waited longer."""
        earlier = list(takewhile(lambda other: other is not sequence, self._queue))
        rows, tokens = map(self._rows.__getitem__, earlier), map(self._queue.__getitem__, earlier)
        return Ahead(sum(rows), sum(tokens))

    def share(self, tenant: str) -> Share:
        """Returns an empty share: tenants are not told apart."""
        return Share(0.0, 0, 0)

    def share_beside(self, tenant: str, running: Collection[str]) -> float:
        """Returns 1: tenants are not told apart."""
        return 1.0

    def claim(self, prompt: Sequence) -> float:
        """Returns 0: what came first is computed first."""
        return 0.0

    def check_invariants(self, num_running: int) -> None:
        """Raises InvariantError unless the count of tokens is that of the sequences."""
        check_counts(self._queue, self.num_tokens)


def make_queue(policy: str, weights: Weights) -> WaitingQueue:
    """Returns an empty queue. weights: shares of tenants, for the fair policy."""
    if policy == FIRST_COME:
        return FirstComeQueue()
    assert policy == FAIR, policy
    return FairQueue(weights)
