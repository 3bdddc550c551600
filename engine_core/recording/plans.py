"""Plans in a recording: columns, each plan written as changes to the plan before it.

A batch that decodes has the same rows for many steps, and `starts` that grow by one. Such a plan takes about
thirty bytes. A column that is left out of the file is covered by its sum, which the reader verifies.
"""

from collections.abc import Callable
from typing import Any

from engine_core.scheduler.planning.step_batch import first_numbers
from engine_core.step.plan import NewRow, Plan
from pagewire.internal.v1.recording_pb2 import RecordedNewRow, RecordedPlan
from pagewire.ipc.columns import pack_u32, unpack_u32

NumberOf = Callable[[NewRow], int]
"""Returns the number of the request that a row belongs to."""
Columns = dict[str, list[Any]]
"""A plan by column name, without token ids; `step` alone for a plan without rows."""

_SPARSE = (
    "removed_rows",
    "table_rows",
    "table_starts",
    "table_counts",
    "table_blocks",
    "copy_sources",
    "copy_targets",
    "append_rows",
    "swap_out_blocks",
    "swap_out_host_blocks",
    "swap_in_host_blocks",
    "swap_in_blocks",
    "sample_counts",
    "restore_rows",
    "restore_checkpoints",
    "save_rows",
    "save_positions",
    "save_checkpoints",
)
"""Columns that are empty in most plans."""
_BATCH = ("rows", "starts", "counts", "sample_rows", "sample_sources")


def columns_of(plan: Plan, number_of: NumberOf) -> Columns:
    """Returns the columns of a plan."""
    columns: Columns = {"step": [plan.step]}
    if not plan.rows:
        return columns
    for name in (*_SPARSE, *_BATCH):
        columns[name] = getattr(plan, name)
    columns["new_rows"] = [
        (
            new.row,
            number_of(new),
            new.sequence_index,
            len(new.token_ids),
            tuple(new.blocks),
            new.prompt_logprobs_start,
            new.num_beam_candidates,
        )
        for new in plan.new_rows
    ]
    columns["forks"] = [(fork.row, fork.source_row, fork.sequence_index) for fork in plan.forks]
    return columns


class PlanWriter:
    """Writes plans, each as changes to the one before it."""

    def __init__(self) -> None:
        self._rows: list[int] = []

    def write(self, columns: Columns, record: RecordedPlan) -> None:
        """Fills in the record of one plan. Cost of a step that only decodes: about 5 ns per row."""
        (record.step,) = columns["step"]
        if not record.step:
            return
        for name in _SPARSE:
            if column := columns[name]:
                setattr(record, name, pack_u32(column))
        for row, number, index, num_tokens, blocks, logprobs_start, num_candidates in columns["new_rows"]:
            record.new_rows.add(
                row=row,
                number=number,
                sequence_index=index,
                num_tokens=num_tokens,
                blocks=pack_u32(blocks),
                prompt_logprobs_start=logprobs_start,
                num_beam_candidates=num_candidates,
            )
        if columns["forks"]:
            record.forks = pack_u32(number for fork in columns["forks"] for number in fork)
        self._write_batch(columns, record)

    def _write_batch(self, columns: Columns, record: RecordedPlan) -> None:
        rows, starts, counts, samples, sources = (columns[name] for name in _BATCH)
        is_same = rows == self._rows and not (
            columns["removed_rows"] or columns["new_rows"] or columns["forks"]
        )
        if is_same:
            record.starts_sum = sum(starts)
        else:
            record.rows, record.starts = pack_u32(rows), pack_u32(starts)
        self._rows = [] if columns["sample_counts"] else rows  # a shorter result moves the next `starts`
        if counts.count(1) != len(counts):
            record.counts = pack_u32(counts)
        if samples != rows:
            record.sample_rows = pack_u32(samples)
            record.is_sample_empty = not samples
        if sources != first_numbers(len(sources)):
            record.sample_sources = pack_u32(sources)


class PlanReader:
    """Reads what a PlanWriter has written, plan after plan."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ends: list[int] = []

    def read(self, record: RecordedPlan) -> Columns:
        """Returns the columns of a plan, equal to those of columns_of().

        `starts` is empty where the file has only its sum and the sum does not match.
        """
        columns: Columns = {"step": [record.step]}
        if not record.step:
            return columns
        columns |= {name: unpack_u32(getattr(record, name)) for name in _SPARSE}
        columns["new_rows"] = [_read_new_row(new) for new in record.new_rows]
        forks = iter(unpack_u32(record.forks))
        columns["forks"] = list(zip(forks, forks, forks, strict=True))
        rows = unpack_u32(record.rows) or self._rows
        starts = unpack_u32(record.starts) if record.rows else self._ends
        counts = unpack_u32(record.counts) or [1] * len(rows)
        samples = unpack_u32(record.sample_rows)
        if not samples and not record.is_sample_empty:
            samples = rows
        self._rows = rows
        self._ends = [start + count for start, count in zip(starts, counts, strict=True)]
        if not record.rows and sum(starts) != record.starts_sum:
            starts = []
        sources = unpack_u32(record.sample_sources) or list(range(len(samples)))
        return columns | dict(zip(_BATCH, (rows, starts, counts, samples, sources), strict=True))


def _read_new_row(new: RecordedNewRow) -> tuple[Any, ...]:
    return (
        new.row,
        new.number,
        new.sequence_index,
        new.num_tokens,
        tuple(unpack_u32(new.blocks)),
        new.prompt_logprobs_start,
        new.num_beam_candidates,
    )
