"""What lies in the blocks of a worker that computes nothing: the check that block tables are right.

Tokens of the simulated worker do not depend on its cache, so a wrong block would change nothing that a
client sees. Here every slot is tagged, when a token is computed into it, with a hash of all tokens up to
that one and of the namespace of the request. A row that computes must find in the blocks of its table
the tags of its own tokens, all of them. So a lost or misplaced block, a copy that was not made, a block
that was given to two owners or is taken for what it is not, is found in the step in which it is read.
"""

from collections.abc import Callable, Iterable

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from worker.step.rows import RowTable


class WrongMemory(AssertionError):
    """A row would read, or overwrite, what is not its own."""


class TaggedMemory:
    """Tags of the slots of the cache, beside the row table of a worker. Plain lists: everything is small."""

    def __init__(self, rows: RowTable, num_host_blocks: int, namespace: Callable[[int], int]) -> None:
        """namespace: of the request with this seed; equal for requests that may share blocks."""
        self._rows, self._namespace = rows, namespace
        self._size = rows.block_size
        self._tags = [[0] * self._size for _ in range(rows.cache_blocks)]
        self._host_tags = [[0] * self._size for _ in range(num_host_blocks)]
        self._histories: list[list[int]] = [[] for _ in range(rows.max_num_rows)]  # by row, of its tokens
        self._roots = [0] * rows.max_num_rows

    def execute(self, plan: worker_pb2.StepPlan) -> None:
        """Call it when the rows have executed the plan. Raises WrongMemory."""
        for new in plan.new_rows:
            self._histories[new.row], self._roots[new.row] = [], self._namespace(new.sampling.seed)
        for fork in plan.forks:
            self._histories[fork.row] = self._histories[fork.source_row].copy()
            self._roots[fork.row] = self._roots[fork.source_row]
        self._swap(plan)
        self._copy(unpack_u32(plan.copy_sources), unpack_u32(plan.copy_targets))
        starts, counts = unpack_u32(plan.starts), unpack_u32(plan.counts)
        tables = {row: self._rows.blocks[row].tolist() for row in unpack_u32(plan.rows)}
        written: set[tuple[int, int]] = set()
        ends = self._ends(plan, tables, starts, counts)
        for (row, table), start, count, end in zip(tables.items(), starts, counts, ends, strict=True):
            self._extend(row, end)
            self._write(row, table, start, end, written)
            self._spoil(table, end, start + count, written)
        for (row, table), end in zip(tables.items(), ends, strict=True):
            self._check(row, table, end)

    def _ends(
        self, plan: worker_pb2.StepPlan, rows: Iterable[int], starts: list[int], counts: list[int]
    ) -> list[int]:
        """Behind the tokens that each row has computed and keeps. Of a row with drafts these are the accepted
        ones: it has one token more, which it has not computed."""
        sample_counts = unpack_u32(plan.sample_counts)
        drafting = {row for row, n in zip(unpack_u32(plan.sample_rows), sample_counts, strict=False) if n > 1}
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        kept = self._rows.num_tokens
        return [int(kept[row]) - 1 if row in drafting else end for row, end in zip(rows, ends, strict=True)]

    def _swap(self, plan: worker_pb2.StepPlan) -> None:
        out, back = unpack_u32(plan.swap_out_host_blocks), unpack_u32(plan.swap_in_host_blocks)
        if len(set(out)) < len(out) or not set(out).isdisjoint(back):
            raise WrongMemory("swaps of one plan depend on their order")
        for block, host_block in zip(unpack_u32(plan.swap_out_blocks), out, strict=True):
            self._host_tags[host_block] = self._tags[block].copy()
        for block, host_block in zip(unpack_u32(plan.swap_in_blocks), back, strict=True):
            self._tags[block] = self._host_tags[host_block].copy()

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        if len(set(targets)) < len(targets) or not set(sources).isdisjoint(targets):
            raise WrongMemory("copies of one plan depend on their order")
        for source, target in zip(sources, targets, strict=True):
            self._tags[target] = self._tags[source].copy()

    def _extend(self, row: int, end: int) -> None:
        """Makes the row's histories reach so far."""
        histories = self._histories[row]
        if len(histories) >= end:
            return
        history = histories[-1] if histories else self._roots[row]
        for token in self._rows.token_ids[row, len(histories) : end].tolist():
            history = hash((history, token))
            histories.append(history)

    def _write(self, row: int, table: list[int], start: int, end: int, written: set[tuple[int, int]]) -> None:
        """The row computes these positions. written: what the step has, block and place in it."""
        for position in range(start, end):
            index, offset = divmod(position, self._size)
            slot = table[index], offset
            if slot in written:
                raise WrongMemory("two tokens are computed into one slot")
            written.add(slot)
            self._tags[slot[0]][offset] = self._histories[row][position]

    def _spoil(self, table: list[int], start: int, end: int, written: set[tuple[int, int]]) -> None:
        """Refused drafts, however many there were, lie in these positions."""
        for position in range(start, end):
            index, offset = divmod(position, self._size)
            if (slot := (table[index], offset)) in written:
                raise WrongMemory("a draft is computed into a slot that another token has")
            written.add(slot)
            self._tags[slot[0]][offset] = 0

    def _check(self, row: int, table: list[int], end: int) -> None:
        """The row reads all positions below `end`."""
        histories = self._histories[row]
        for index, start in enumerate(range(0, end, self._size)):
            own = histories[start : min(start + self._size, end)]
            if self._tags[table[index]][: len(own)] != own:
                raise WrongMemory(f"row {row} finds in its block {index} what is not its own")
