"""Plans in a recording: of each plan the columns that are not as expected after the plan before it.

A batch that decodes has the same rows for many steps, and `starts` that grow by one. Such a plan takes about
thirty bytes: nothing of it is written but the sum of `starts`, which the reader verifies.
"""

from collections.abc import Mapping
from itertools import chain

from engine_core.request import Request
from engine_core.scheduler.planning.step_batch import first_numbers
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan
from pagewire.internal.v1.recording_pb2 import RecordedPlan
from pagewire.internal.v1.worker_pb2 import StepPlan
from pagewire.ipc.columns import pack_u32, unpack_u32

Columns = dict[str, list[int]]
"""A plan by column name, without token ids; `step` alone for a plan without rows."""

_FIELDS = {
    field.name: field.number
    for field in StepPlan.DESCRIPTOR.fields
    if field.name not in ("step", "append_token_ids", "kept_changes")
}
_LISTS = [name for name in _FIELDS if name not in ("new_rows", "forks")]


def columns_of(plan: Plan, numbers: Mapping[int, int]) -> Columns:
    """Returns the columns of a plan. numbers: of requests, by row that begins.

    `new_rows` has for each: row, request, sequence, tokens, where log-probabilities of its prompt begin,
    candidates of a beam, number of blocks, and these blocks.
    """
    columns = {"step": [plan.step]}
    if not plan.rows:
        return columns
    for name in _LISTS:
        columns[name] = getattr(plan, name)
    columns["new_rows"] = [
        number
        for new in plan.new_rows
        for number in (
            new.row,
            numbers[new.row],
            new.sequence_index,
            len(new.token_ids),
            new.prompt_logprobs_start,
            new.num_beam_candidates,
            len(new.blocks),
            *new.blocks,
        )
    ]
    forks = ((fork.row, fork.source_row, fork.sequence_index) for fork in plan.forks)
    columns["forks"] = list(chain.from_iterable(forks))
    return columns


def requests_of(plan: Plan, states: SequenceStates) -> dict[int, Request]:
    """Returns the requests of the rows that begin in a plan, by row.

    states: of the scheduler that has just made the plan.
    """
    if not plan.new_rows:
        return {}
    held = {sequence.row: sequence.request for sequence in states.holders()}
    return {new.row: held[new.row] for new in plan.new_rows}


def _expected(name: str, columns: Columns) -> list[int]:
    """Returns a column as it is in most plans. columns: at least those before it in StepPlan."""
    if name == "counts":
        return [1] * len(columns["rows"])
    if name == "sample_rows":
        return columns["rows"]
    if name == "sample_sources":
        return first_numbers(len(columns["sample_rows"]))
    return []


class PlanWriter:
    """Writes plans, each as changes to the one before it."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # that may go on in the next plan

    def write(self, columns: Columns, record: RecordedPlan) -> None:
        """Fills in the record of one plan. Cost of a step that only decodes: about 5 ns per row."""
        (record.step,) = columns["step"]
        if not record.step:
            return
        rows = columns["rows"]
        goes_on = rows == self._rows and not (
            columns["removed_rows"] or columns["new_rows"] or columns["forks"]
        )
        if goes_on:
            record.starts_sum = sum(columns["starts"])
        for name, field in _FIELDS.items():
            if goes_on and name in ("rows", "starts"):
                continue
            column = columns[name]
            if column != _expected(name, columns):
                record.columns.add(field=field, values=pack_u32(column))
        self._rows = [] if columns["sample_counts"] else rows  # a shorter result moves the next `starts`


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
        written = {each.field: each.values for each in record.columns}
        goes_on = record.HasField("starts_sum")
        for name, field in _FIELDS.items():
            if field in written:
                columns[name] = unpack_u32(written[field])
            elif goes_on and name in ("rows", "starts"):
                columns[name] = self._rows if name == "rows" else self._ends
            else:
                columns[name] = _expected(name, columns)
        self._rows = columns["rows"]
        ends = zip(columns["starts"], columns["counts"], strict=True)
        self._ends = [start + count for start, count in ends]
        if goes_on and sum(columns["starts"]) != record.starts_sum:
            columns["starts"] = []
        return columns
