"""The queues of --policy: first come first served, or fair shares."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from engine_core.queue.base import Ahead, WaitingQueue, check_counts, rows_of
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Weights
from engine_core.request import Request, Sequence

FAIR, FIRST_COME = "fair", "fcfs"


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


def make_queue(policy: str, weights: Weights) -> WaitingQueue:
    """Returns an empty queue. weights: shares of tenants, for the fair policy."""
    if policy == FIRST_COME:
        return FirstComeQueue()
    assert policy == FAIR, policy
    return FairQueue(weights)
