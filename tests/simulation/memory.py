"""What lies in the blocks of a worker that computes nothing: the check that block tables are right.

Tokens of the simulated worker do not depend on its cache, so a wrong block would change nothing that a
client sees. Here every slot is tagged, when a token is computed into it, with a hash of all tokens up to
that one, of the namespace of the request, of its images and of its adapter. A row that computes must find in
the blocks of its table the tags of its own tokens, all of them. So a lost or misplaced block, a copy that was
not made, a block that was given to two owners or is taken for what it is not, is found in the step in which
it is read.
"""

from collections import deque
from collections.abc import Callable, Iterable

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from worker.step.rows import RowTable


class WrongMemory(AssertionError):
    """A row would read, or overwrite, what is not its own."""


class TaggedMemory:
    """Tags of the slots of the cache, beside the row table of a worker. Plain lists: everything is small."""

    def __init__(
        self, rows: RowTable, num_host_blocks: int, namespace: Callable[[int], int], has_states: bool = False
    ) -> None:
        """namespace: of the request with this seed; equal for requests that may share blocks. has_states:
        layers keep one per row beside the blocks."""
        self._rows, self._namespace = rows, namespace
        self._size = rows.block_size
        self._tags = [[0] * self._size for _ in range(rows.cache_blocks)]
        self._host_tags = [[0] * self._size for _ in range(num_host_blocks)]
        self._histories: list[list[int]] = [[] for _ in range(rows.max_num_rows)]  # by row, of its tokens
        self._roots = [0] * rows.max_num_rows
        self._adapters: dict[int, worker_pb2.RowAdapter] = {}  # by row
        self._vectors: list[dict[int, tuple[bytes, int]]] = [{} for _ in self._histories]
        """By row and position: the item whose vector is there, and which of its vectors."""
        self._states = TaggedStates(rows.max_num_rows, self._histories) if has_states else None
        self._contents: dict[bytes, int] = {}  # tag of the last slot, of what was told as cached
        self._computing: deque[set[tuple[int, int]]] = deque()  # slots that steps in flight write to

    def check_kept(self, kept: worker_pb2.KeptCache) -> None:
        """Blocks that the next core is told of are full, and have what they were cached for; checkpoints hold
        the states behind such blocks. Raises WrongMemory."""
        for at, block in enumerate(unpack_u32(kept.blocks)):
            content, tags = kept.contents[16 * at : 16 * at + 16], self._tags[block]
            if 0 in tags:
                raise WrongMemory(f"block {block} is cached, and not full")
            if self._contents.setdefault(content, tags[-1]) != tags[-1]:
                raise WrongMemory(f"block {block} is cached under another content")
        for at, slot in enumerate(unpack_u32(kept.checkpoints)):
            content = kept.checkpoint_contents[16 * at : 16 * at + 16]
            length, tag = self._states.saved(slot) if self._states is not None else (0, 0)
            if not length or length % self._size:
                raise WrongMemory(f"checkpoint {slot} is told, and not saved behind a block")
            if self._contents.setdefault(content, tag) != tag:
                raise WrongMemory(f"checkpoint {slot} is told with another content")

    def read(self, block: int) -> list[int]:
        """Returns the tags of a block for another worker; 0 where a step in flight computes."""
        is_written = [any((block, at) in step for step in self._computing) for at in range(self._size)]
        return [0 if each else tag for each, tag in zip(is_written, self._tags[block], strict=True)]

    def write(self, block: int, tags: list[int]) -> None:
        """A block of another worker replaces one. Raises WrongMemory."""
        if any(written == block for step in self._computing for written, _ in step):
            raise WrongMemory(f"a step computes into block {block}, which is being read from elsewhere")
        self._tags[block] = tags

    def finished(self) -> None:
        """The oldest step in flight is done."""
        self._computing.popleft()

    def execute(self, plan: worker_pb2.StepPlan) -> None:
        """Call it when the rows have executed the plan. Raises WrongMemory."""
        for new in plan.new_rows:
            self._histories[new.row], self._roots[new.row] = [], self._namespace(new.sampling.seed)
            self._adapters[new.row] = new.adapter
            self._vectors[new.row] = {
                position: (item.digest, number)
                for item in new.media
                for number, position in enumerate(unpack_u32(item.positions))
            }
        for fork in plan.forks:
            self._histories[fork.row] = self._histories[fork.source_row].copy()
            self._roots[fork.row] = self._roots[fork.source_row]
            self._adapters[fork.row] = self._adapters[fork.source_row]
            self._vectors[fork.row] = self._vectors[fork.source_row]
        self._swap(plan)
        self._copy(unpack_u32(plan.copy_sources), unpack_u32(plan.copy_targets))
        starts, counts = unpack_u32(plan.starts), unpack_u32(plan.counts)
        if self._states is not None:
            self._states.begin(plan)
        tables = {row: self._rows.blocks[row].tolist() for row in unpack_u32(plan.rows)}
        written: set[tuple[int, int]] = set()
        ends = self._ends(plan, tables, starts, counts)
        for (row, table), start, count, end in zip(tables.items(), starts, counts, ends, strict=True):
            self._extend(row, end)
            self._write(row, table, start, end, written)
            self._spoil(table, end, start + count, written)
        for (row, table), end in zip(tables.items(), ends, strict=True):
            self._check(row, table, end)
        self._computing.append(written)
        if self._states is not None:
            self._states.finish(plan, ends)

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
        history, adapter = histories[-1] if histories else self._roots[row], self._adapters[row]
        for token in self._rows.token_ids[row, len(histories) : end].tolist():
            begins = adapter.digest and len(histories) == adapter.start
            content = self._vectors[row].get(len(histories), token)
            history = hash((history, content, adapter.digest) if begins else (history, content))
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


class TaggedStates:
    """States of rows and of checkpoints, as in worker.memory.row_states: how many tokens each holds, and the
    tag of the last."""

    def __init__(self, num_rows: int, histories: list[list[int]]) -> None:
        """histories: tags of each row's tokens, which grow with the step."""
        self._histories = histories
        self._lengths = [0] * num_rows
        self._saved: dict[int, tuple[int, int]] = {}  # by checkpoint
        self._restored: dict[int, tuple[int, int]] = {}  # by row, in this plan

    def saved(self, slot: int) -> tuple[int, int]:
        """Returns how many tokens a checkpoint holds, 0 if none was saved there, and the tag of the last."""
        return self._saved.get(slot, (0, 0))

    def begin(self, plan: worker_pb2.StepPlan) -> None:
        """Rows begin. Raises WrongMemory."""
        for new in plan.new_rows:
            self._lengths[new.row] = 0
        for fork in plan.forks:
            self._lengths[fork.row] = self._lengths[fork.source_row]
        self._restored.clear()
        for row, slot in zip(
            unpack_u32(plan.restore_rows), unpack_u32(plan.restore_checkpoints), strict=True
        ):
            if slot not in self._saved:
                raise WrongMemory(f"checkpoint {slot} was never saved")
            self._restored[row] = self._saved[slot]
            self._lengths[row] = self._saved[slot][0]

    def finish(self, plan: worker_pb2.StepPlan, ends: list[int]) -> None:
        """Rows have computed up to these ends, and have their histories. Raises WrongMemory."""
        for row, (length, tag) in self._restored.items():
            if self._histories[row][length - 1] != tag:
                raise WrongMemory(f"row {row} begins with a state that is not its own")
        computed: dict[int, range] = {}
        rows = unpack_u32(plan.rows)
        for row, start, end in zip(rows, unpack_u32(plan.starts), ends, strict=True):
            if self._lengths[row] != start:
                raise WrongMemory(f"row {row} does not begin where its state has stopped")
            self._lengths[row] = end
            computed[row] = range(start + 1, end + 1)
        saves = unpack_u32(plan.save_rows), unpack_u32(plan.save_positions), unpack_u32(plan.save_checkpoints)
        for row, position, slot in zip(*saves, strict=True):
            if position not in computed.get(row, ()):
                raise WrongMemory(f"a state of row {row} is saved behind no token of its step")
            self._saved[slot] = position, self._histories[row][position - 1]
        for row, source in zip(unpack_u32(plan.sample_rows), unpack_u32(plan.sample_sources), strict=True):
            self._lengths[row] = self._lengths[rows[source]]
