"""The swap space: host memory that keeps the blocks of preempted sequences until they run again.

A victim's computed blocks are copied out in the plan that preempts it. The plan that admits it again copies
back those that the prefix cache no longer has. This is done where it is cheaper than to compute the lost
tokens again:

    2 * blocks * swap_us_per_block  <=  tokens lost * prefill_us_per_token

The worker measures both constants while it loads; where they are 0 (not measured), every victim is copied.
Only plans that preempt copy out, and only plans that admit copy in: never both in one plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine_core.errors import InvariantError
from engine_core.kv_cache.block_tables import BlockTables
from engine_core.request import Sequence
from engine_core.step.plan import Plan


@dataclass(frozen=True, slots=True)
class SwapCosts:
    """Measured by the worker, in microseconds; 0: free, or not measured."""

    prefill_us_per_token: float = 0.0
    swap_us_per_block: float = 0.0

    def is_swap_cheaper(self, num_blocks: int, num_tokens_lost: int) -> bool:
        """Whether copying so many blocks out and back costs no more than computing so many tokens again."""
        return 2 * num_blocks * self.swap_us_per_block <= num_tokens_lost * self.prefill_us_per_token


UNMEASURED = SwapCosts()


@dataclass(frozen=True, slots=True)
class _Copy:
    blocks: list[int]  # in host memory
    num_tokens: int  # that were computed


class SwapSpace:
    """Host blocks 0 to num_blocks - 1: each is free, or holds a block of a waiting sequence."""

    def __init__(self, num_blocks: int, costs: SwapCosts, tables: BlockTables) -> None:
        """num_blocks: 0 disables swapping: every victim is computed again."""
        self.num_blocks = num_blocks
        self.num_swapped_out = 0  # sequences, since the start
        self._costs = costs
        self._tables = tables
        self._free: list[int] = []  # that were used before
        self._next = 0  # it and those above were never used: host memory is touched no sooner than needed
        self._copies: dict[Sequence, _Copy] = {}

    @property
    def num_free(self) -> int:
        """Free host blocks."""
        return len(self._free) + self.num_blocks - self._next

    @property
    def num_copies(self) -> int:
        """Sequences that have host blocks."""
        return len(self._copies)

    def num_tokens(self, sequence: Sequence) -> int:
        """Computed tokens of a waiting sequence that its host blocks hold."""
        copy = self._copies.get(sequence)
        return copy.num_tokens if copy else 0

    def swap_out(self, sequence: Sequence, plan: Plan) -> None:
        """Copies the computed blocks of a sequence, which still holds them, if there is room and it pays."""
        count = self._tables.blocks_for(sequence.num_computed_tokens)
        if not 0 < count <= self.num_free:
            return
        if not self._costs.is_swap_cheaper(count, self._tables.num_tokens_lost(sequence)):
            return
        blocks = self._take(count)
        plan.swap_out_blocks += sequence.blocks[:count]
        plan.swap_out_host_blocks += blocks
        self._copies[sequence] = _Copy(blocks, sequence.num_computed_tokens)
        self.num_swapped_out += 1

    def swap_in(self, sequence: Sequence, plan: Plan) -> None:
        """Copies the host blocks of an admitted sequence back, except those that the prefix cache had, and
        frees them."""
        copy = self._copies.pop(sequence, None)
        if copy is None:
            return
        cached = self._tables.blocks_for(sequence.num_computed_tokens)
        plan.swap_in_host_blocks += copy.blocks[cached:]
        plan.swap_in_blocks += sequence.blocks[cached : len(copy.blocks)]
        sequence.set_computed(max(sequence.num_computed_tokens, copy.num_tokens))
        self._free += copy.blocks

    def drop(self, sequence: Sequence) -> None:
        """Frees the host blocks of a sequence that has ended while waiting."""
        copy = self._copies.pop(sequence, None)
        if copy is not None:
            self._free += copy.blocks

    def drop_copies_of(self, plan: Plan) -> None:
        """Frees host blocks that a plan was to write; the plan will not be executed."""
        never_written = set(plan.swap_out_host_blocks)
        for sequence, copy in list(self._copies.items()):
            if not never_written.isdisjoint(copy.blocks):
                self.drop(sequence)

    def drop_all(self) -> None:
        """Frees all host blocks; their sequences are computed again."""
        for sequence in list(self._copies):
            self.drop(sequence)

    def _take(self, count: int) -> list[int]:
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        fresh = range(self._next, self._next + count - len(blocks))
        self._next += len(fresh)
        return [*blocks, *fresh]

    def check_invariants(self, waiting: Iterable[Sequence]) -> None:
        """Raises InvariantError unless each host block is free or holds one block of one waiting sequence."""
        held = [block for copy in self._copies.values() for block in copy.blocks]
        if sorted(self._free + held) != list(range(self._next)) or self._next > self.num_blocks:
            raise InvariantError(f"{self.num_free} free, {len(held)} held of {self.num_blocks} host blocks")
        if not self._copies.keys() <= set(waiting):
            raise InvariantError("a sequence that does not wait holds host blocks")
        for sequence, copy in self._copies.items():
            if len(copy.blocks) != self._tables.blocks_for(copy.num_tokens):
                raise InvariantError(f"{len(copy.blocks)} host blocks hold {copy.num_tokens} tokens")
            if not 0 < copy.num_tokens < sequence.num_tokens:
                raise InvariantError(f"{copy.num_tokens} tokens are kept of {sequence.num_tokens}")
