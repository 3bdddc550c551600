"""The waiting queue: first come, first served.

What a sequence will have to compute depends on the prefix cache. It is counted as it was when the
sequence came: to ask the cache again for all that wait would cost a lookup for every block of them.
"""

from collections import OrderedDict
from collections.abc import Iterator

from engine_core.block_pool import InvariantError
from engine_core.request import Sequence


class WaitingQueue:
    """Sequences that wait for a row and for blocks. Everything but iteration is O(1)."""

    def __init__(self) -> None:
        self._queue: OrderedDict[Sequence, int] = OrderedDict()  # and the tokens to compute for it
        self.num_tokens = 0
        """Tokens to compute for all of them."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def head(self) -> Sequence | None:
        """The one whose turn it is."""
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

    def check_invariants(self) -> None:
        """Raises InvariantError when the count is not that of the sequences."""
        if self.num_tokens != sum(self._queue.values()):
            raise InvariantError(
                f"{self.num_tokens} tokens wait, but {sum(self._queue.values())} are counted"
            )
        if not all(0 < tokens <= sequence.num_tokens for sequence, tokens in self._queue.items()):
            raise InvariantError("a waiting sequence counts for more tokens than it has, or for none")
