"""The waiting queue: first come, first served."""

from collections import OrderedDict
from collections.abc import Iterator

from engine_core.request import Sequence


class WaitingQueue:
    """Sequences that wait for a row and for blocks. Everything but iteration is O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, None] = OrderedDict()
        self.num_tokens = 0
        """Tokens to compute for all of them."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def head(self) -> Sequence | None:
        """The one whose turn it is."""
        return next(iter(self._queue), None)

    def add(self, sequence: Sequence) -> None:
        """A sequence arrives."""
        self._queue[sequence] = None
        self.num_tokens += sequence.num_new_tokens

    def add_front(self, sequence: Sequence) -> None:
        """A sequence that had its turn already comes back."""
        self.add(sequence)
        self._queue.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is admitted or has ended."""
        del self._queue[sequence]
        self.num_tokens -= sequence.num_new_tokens
