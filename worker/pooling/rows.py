"""Which rows pool, and what a step does for them.

A row that pools has an entry among those that sample, and gets a vector there in place of a token. Of the
last token the hidden state, or logits of chosen tokens, are read in the last step alone; for all else, states
are read in every step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.pooling.running import RUNNING, Running
from worker.pooling.stages import AnyHead, SparseHead
from worker.pooling.vectors import Floats, HiddenStates, States, finish
from worker.step.plan_reader import Step
from worker.step.rows import require


@dataclass(slots=True)
class PooledRow:
    """A row that pools. running: None: the last token's state is its vector, or has the logits for it."""

    options: engine_pb2.Pooling
    running: Running | None
    head: AnyHead | None = None
    next: int = 0
    """With `running`: position of the next state to read."""

    def add(self, states: Floats) -> None:
        """Pools the next states of the row [N, E]."""
        assert self.running is not None
        self.running.add(self.head.largest(states) if isinstance(self.head, SparseHead) else states)


@dataclass(frozen=True, slots=True)
class PooledStep:
    """What one step reads for rows that pool; vectors() is called once the step is done, step after step."""

    mask: npt.NDArray[np.bool_]  # [A] entries of sample_rows that pool
    reads: Sequence[tuple[PooledRow, States]]  # of rows that pool every state
    rows: Sequence[PooledRow]  # of the entries in the mask
    last_states: States | None  # [N, E] of those among them whose last is pooled; None: there are none
    chosen_logits: States | None  # [N, C] of those among them that read logits; None: there are none

    def vectors(self) -> list[tuple[int, Floats | None]]:
        """Returns each entry that pools and its vectors [M, D], one or those of all tokens; None: one is not
        finite."""
        for row, states in self.reads:
            row.add(states())
        last = iter(self.last_states() if self.last_states is not None else ())
        chosen = iter(self.chosen_logits() if self.chosen_logits is not None else ())
        vectors: list[Floats] = []
        behind: defaultdict[AnyHead, list[int]] = defaultdict(list)
        for place, row in enumerate(self.rows):
            if row.options.token_ids:
                vectors.append(next(chosen)[None, : len(row.options.token_ids)])
            else:
                vectors.append(next(last)[None] if row.running is None else row.running.value())
            if row.head is not None:
                behind[row.head].append(place)
        for head, places in behind.items():
            ends = np.cumsum([len(vectors[place]) for place in places])
            made = np.split(head(np.concatenate([vectors[place] for place in places])), ends[:-1])
            for place, found in zip(places, made, strict=True):
                vectors[place] = found
        entries = np.flatnonzero(self.mask).tolist()
        options = [row.options for row in self.rows]
        return list(zip(entries, map(finish, vectors, options), strict=True))


class PoolRows:
    """The rows that pool. A worker.step.plan_reader.RowFeature."""

    def __init__(self, heads: Mapping[int, AnyHead]) -> None:
        """heads: by Pooling.head."""
        self._heads = heads
        self._rows: dict[int, PooledRow] = {}

    @property
    def head_sizes(self) -> list[int]:
        """ModelFacts.head_sizes."""
        last = max(self._heads, default=0)
        return [self._heads[n].size if n in self._heads else 0 for n in range(1, last + 1)]

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if not new.HasField("pooling"):
            return
        kind, head = new.pooling.type, new.pooling.head
        require(kind == engine_pb2.POOLING_TYPE_LAST or kind in RUNNING, f"pooling type {kind}")
        require(not head or head in self._heads, f"row {row} needs head {head}")
        require(not output_ids, f"row {row} pools and has output")
        pools_logits = isinstance(self._heads.get(head), SparseHead)
        require(not pools_logits or kind == engine_pb2.POOLING_TYPE_MAX, f"row {row} pools logits by {kind}")
        is_plain = kind == engine_pb2.POOLING_TYPE_LAST and not head
        require(is_plain or not new.pooling.token_ids, f"row {row} pools logits, and more")
        options = engine_pb2.Pooling()
        options.CopyFrom(new.pooling)
        running = RUNNING[kind]() if kind in RUNNING else None
        self._rows[row] = PooledRow(options, running, self._heads.get(head))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, which must not pool. Raises PlanError."""
        require(source_row not in self._rows, f"row {source_row} pools and is forked")

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._rows.pop(row, None)

    def all_in(self, rows: Integers) -> bool:
        """Returns whether all of the rows [A] pool, and there is one."""
        return bool(self._rows) and bool(self._mask(rows).all()) and len(rows) > 0

    def any_logits(self, rows: Integers) -> bool:
        """Returns whether one of the rows [A] reads logits."""
        pooled = (self._rows[row] for row in rows.tolist() if row in self._rows) if self._rows else ()
        return any(row.options.token_ids for row in pooled)

    def pool(self, outputs: HiddenStates, step: Step) -> PooledStep | None:
        """Reads what a step computed for rows that pool; None: there are none in it. Raises PlanError."""
        if not self._rows or self._rows.keys().isdisjoint(step.rows.tolist()):
            return None
        reads = list[tuple[PooledRow, States]]()
        for entry, row in enumerate(step.rows.tolist()):
            if (its := self._rows.get(row)) is not None and its.running is not None:
                count = int(step.counts[entry])
                require(int(step.starts[entry]) == its.next, f"row {row} leaves out states that it pools")
                its.next += count
                reads.append((its, outputs.row_states(entry, count)))
        mask = self._mask(step.sample_rows)
        entries = np.flatnonzero(mask)
        rows = [self._rows[row] for row in step.sample_rows[entries].tolist()]
        first, last, chosen = _first_logits(step)[entries], [], []
        for index, row in zip(first.tolist(), rows, strict=True):
            if row.options.token_ids:
                chosen.append((index, list(row.options.token_ids)))
            elif row.running is None:
                last.append(index)
        last_states = outputs.sampled_states(np.array(last)) if last else None
        chosen_logits = None
        if chosen:
            most = max(len(ids) for _, ids in chosen)
            token_ids = np.array([ids + ids[-1:] * (most - len(ids)) for _, ids in chosen])
            chosen_logits = outputs.chosen_logits(np.array([index for index, _ in chosen]), token_ids)
        return PooledStep(mask, reads, rows, last_states, chosen_logits)

    def _mask(self, rows: Integers) -> npt.NDArray[np.bool_]:
        members: Sequence[bool] = [row in self._rows for row in rows.tolist()]
        return np.array(members, np.bool_)


def _first_logits(step: Step) -> Integers:
    """Returns for each entry of sample_rows [A] the first of its logits among those of the step."""
    if step.num_logits is None:
        return np.arange(len(step.sample_rows))
    first: Integers = np.cumsum(step.num_logits) - step.num_logits
    return first
