"""Plans in a recording: written as changes to the plan before, and compared column by column.

A batch that decodes is the same for many steps, but for `starts`, which go up by one. Such a plan takes
some thirty bytes, and a few comparisons of lists. What is left out is checked when it is read, by a checksum.
"""

import zlib
from collections.abc import Callable
from typing import Any

from engine_core.scheduler.step_batch import first_numbers
from engine_core.step.plan import NewRow, Plan
from pagewire.internal.v1.recording_pb2 import RecordedPlan
from pagewire.ipc.columns import pack_u32, unpack_u32

NumberOf = Callable[[NewRow], int]
"""The number of the request of a row."""
Columns = dict[str, list[Any]]

_PLAIN = (
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
)
"""Columns that are empty in most plans."""


class PlanWriter:
    """Writes plans, each as changes to the one before."""

    def __init__(self, number_of: NumberOf) -> None:
        self._number_of = number_of
        self._rows: list[int] = []

    def write(self, plan: Plan, record: RecordedPlan) -> None:
        """Cost of a plan that only goes on: some 5 ns for each row."""
        record.step = plan.step
        if not plan.rows:
            return
        for name in _PLAIN:
            if column := getattr(plan, name):
                setattr(record, name, pack_u32(column))
        for new in plan.new_rows:
            record.new_rows.add(
                row=new.row,
                number=self._number_of(new),
                sequence_index=new.sequence_index,
                num_tokens=len(new.token_ids),
                blocks=pack_u32(new.blocks),
                prompt_logprobs_start=new.prompt_logprobs_start,
                num_beam_candidates=new.num_beam_candidates,
            )
        if plan.forks:
            forks = ((fork.row, fork.source_row, fork.sequence_index) for fork in plan.forks)
            record.forks = pack_u32(number for fork in forks for number in fork)
        self._write_batch(plan, record)

    def _write_batch(self, plan: Plan, record: RecordedPlan) -> None:
        """Who computes from where, and who samples."""
        if plan.rows == self._rows and not (plan.removed_rows or plan.new_rows or plan.forks):
            record.starts_crc = zlib.crc32(plan.packed_starts())
        else:
            record.rows, record.starts = pack_u32(plan.rows), plan.packed_starts()
            self._rows = plan.rows
        if plan.counts.count(1) != len(plan.counts):
            record.counts = pack_u32(plan.counts)
        if plan.sample_rows != plan.rows:
            record.sample_rows = pack_u32(plan.sample_rows)
            record.is_sample_empty = not plan.sample_rows
        if plan.sample_sources != first_numbers(len(plan.sample_sources)):
            record.sample_sources = pack_u32(plan.sample_sources)


class PlanReader:
    """Reads what a PlanWriter has written, plan after plan."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._ends: list[int] = []

    def read(self, record: RecordedPlan) -> Columns:
        """The columns of a plan. `starts` is empty where the recording has but a checksum, which differs."""
        columns: Columns = {"step": [record.step]}
        if not record.step:
            return columns
        columns |= {name: unpack_u32(getattr(record, name)) for name in _PLAIN}
        columns["new_rows"] = [
            (
                new.row,
                new.number,
                new.sequence_index,
                new.num_tokens,
                tuple(unpack_u32(new.blocks)),
                new.prompt_logprobs_start,
                new.num_beam_candidates,
            )
            for new in record.new_rows
        ]
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
        if not record.rows and zlib.crc32(pack_u32(starts)) != record.starts_crc:
            starts = []
        columns |= {"rows": rows, "starts": starts, "counts": counts, "sample_rows": samples}
        columns["sample_sources"] = unpack_u32(record.sample_sources) or list(range(len(samples)))
        return columns


def columns_of(plan: Plan, number_of: NumberOf) -> Columns:
    """A plan in the form that PlanReader gives it."""
    columns: Columns = {"step": [plan.step]}
    if not plan.rows:
        return columns
    columns |= {name: getattr(plan, name) for name in _PLAIN}
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
    for name in ("rows", "starts", "counts", "sample_rows", "sample_sources"):
        columns[name] = getattr(plan, name)
    return columns
