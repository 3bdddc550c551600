"""Which rows pool, and what a step does for them.

A row that pools has an entry among those that sample, and gets a vector there in place of a token. For the
mean its hidden states are read in every step; for the last token, in the last step alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2, worker_pb2
from worker.pooling.vectors import Floats, HiddenStates, RunningMean, States, finish
from worker.step.plan_reader import Step
from worker.step.rows import require


@dataclass(slots=True)
class PooledRow:
    """A row that pools. mean: None: the last token's state is its vector."""

    options: engine_pb2.Pooling
    mean: RunningMean | None
    next: int = 0
    """With a mean: position of the next state to read."""


@dataclass(slots=True)
class PooledStep:
    """What one step reads for rows that pool; vectors() is called once the step is done, step after step."""

    mask: npt.NDArray[np.bool_]  # [A] entries of sample_rows that pool
    _reads: list[tuple[RunningMean, States]] = field(default_factory=list)
    _rows: list[PooledRow] = field(default_factory=list)  # of the entries in the mask
    _last_states: States | None = None  # [N, E] of those among them without a mean

    def vectors(self) -> list[tuple[int, Floats | None]]:
        """Returns each entry that pools and its vector [D]; None: it is not finite."""
        for mean, states in self._reads:
            mean.add(states())
        last = iter(self._last_states() if self._last_states is not None else ())
        entries = zip(np.flatnonzero(self.mask).tolist(), self._rows, strict=True)
        return [
            (entry, finish(next(last) if row.mean is None else row.mean.value(), row.options))
            for entry, row in entries
        ]


class PoolRows:
    """The rows that pool. A worker.step.plan_reader.RowFeature."""

    def __init__(self) -> None:
        self._rows: dict[int, PooledRow] = {}

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. Raises PlanError."""
        if not new.HasField("pooling"):
            return
        kind = new.pooling.type
        require(kind in (engine_pb2.POOLING_TYPE_LAST, engine_pb2.POOLING_TYPE_MEAN), f"pooling type {kind}")
        require(not output_ids, f"row {row} pools and has output")
        options = engine_pb2.Pooling()
        options.CopyFrom(new.pooling)
        is_mean = kind == engine_pb2.POOLING_TYPE_MEAN
        self._rows[row] = PooledRow(options, RunningMean() if is_mean else None)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, which must not pool. Raises PlanError."""
        require(source_row not in self._rows, f"row {source_row} pools and is forked")

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._rows.pop(row, None)

    def all_in(self, rows: Integers) -> bool:
        """Returns whether all of the rows [A] pool, and there is one."""
        return bool(self._rows) and bool(self._mask(rows).all()) and len(rows) > 0

    def pool(self, outputs: HiddenStates, step: Step) -> PooledStep | None:
        """Reads what a step computed for rows that pool; None: there are none in it. Raises PlanError."""
        if not self._rows or self._rows.keys().isdisjoint(step.rows.tolist()):
            return None
        pooled = PooledStep(self._mask(step.sample_rows))
        for entry, row in enumerate(step.rows.tolist()):
            if (its := self._rows.get(row)) is not None and its.mean is not None:
                count = int(step.counts[entry])
                require(int(step.starts[entry]) == its.next, f"row {row} leaves out states that it pools")
                its.next += count
                pooled._reads.append((its.mean, outputs.row_states(entry, count)))
        entries = np.flatnonzero(pooled.mask)
        pooled._rows = [self._rows[row] for row in step.sample_rows[entries].tolist()]
        if last := [entry for entry, row in zip(entries, pooled._rows, strict=True) if row.mean is None]:
            pooled._last_states = outputs.sampled_states(_first_logits(step)[np.array(last)])
        return pooled

    def _mask(self, rows: Integers) -> npt.NDArray[np.bool_]:
        members: Sequence[bool] = [row in self._rows for row in rows.tolist()]
        return np.array(members, np.bool_)


def _first_logits(step: Step) -> Integers:
    """Returns for each entry of sample_rows [A] the first of its logits among those of the step."""
    if step.num_logits is None:
        return np.arange(len(step.sample_rows))
    first: Integers = np.cumsum(step.num_logits) - step.num_logits
    return first
