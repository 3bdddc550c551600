"""Plans in a recording: of each plan the columns that are not as expected after the plan before it.

A batch that decodes has the same rows for many steps, and `starts` that grow by one. Such a plan takes about
thirty bytes: nothing of it is written but the sum of `starts`, which the reader verifies.
"""

from collections.abc import Mapping

from engine_core.request import Request
from engine_core.scheduler.planning.step_batch import first_numbers
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.plan import Plan
from pagewire.internal.v1.recording_pb2 import RecordedPlan
from pagewire.internal.v1.worker_pb2 import StepPlan
from pagewire.ipc.columns import pack_u32

Columns = dict[str, list[int]]
"""A plan by column name, without token ids; `step` alone for a plan without rows."""

FIELDS = {
    field.name: field.number
    for field in StepPlan.DESCRIPTOR.fields
    if field.name not in ("step", "append_token_ids", "kept_changes", "micro_batch")
}
_LISTS = [name for name in FIELDS if name not in ("new_rows", "forks")]
_BATCH = ("rows", "starts", "counts", "sample_rows", "sample_sources")
_SPARSE = [name for name in FIELDS if name not in _BATCH]
"""Columns that are empty in most plans."""


def columns_of(plan: Plan, numbers: Mapping[int, int], media: dict[bytes, int]) -> Columns:
    """Returns the columns of a plan. numbers: of requests, by row that begins. media: numbers of items by
    digest, in the order in which they were encoded first; new ones are added.

    `new_rows` has for each: row, request, sequence, tokens, where log-probabilities of its prompt begin,
    candidates of a beam, number of blocks, and these blocks.
    """
    columns = {"step": [plan.step]}
    if not plan.rows:
        return columns
    for name in _LISTS:
        columns[name] = getattr(plan, name)
    columns["encode"] = [media.setdefault(item.digest, len(media)) for item in plan.encode]
    columns["forgotten_media"] = [media[digest] for digest in plan.forgotten_media]
    new_rows, forks = columns["new_rows"], columns["forks"] = list[int](), list[int]()
    for new in plan.new_rows:
        new_rows += (new.row, numbers[new.row], new.sequence_index, len(new.token_ids))
        new_rows += (new.prompt_logprobs_start, new.num_beam_candidates, len(new.blocks), *new.blocks)
    for fork in plan.forks:
        forks += (fork.row, fork.source_row, fork.sequence_index)
    return columns


def requests_of(plan: Plan, states: SequenceStates) -> dict[int, Request]:
    """Returns the requests of the rows that begin in a plan, by row.

    states: of the scheduler that has just made the plan.
    """
    if not plan.new_rows:
        return {}
    held = {sequence.row: sequence.request for sequence in states.holders()}
    return {new.row: held[new.row] for new in plan.new_rows}


class PlanWriter:
    """Writes plans, each as changes to the one before it."""

    def __init__(self) -> None:
        self._rows: list[int] = []  # that may go on in the next plan

    def write(self, columns: Columns, record: RecordedPlan) -> None:
        """Fills in the record of one plan. Cost of a step that only decodes: about 5 ns per row."""
        (record.step,) = columns["step"]
        if not record.step:
            return
        rows, starts, counts, samples, sources = (columns[name] for name in _BATCH)
        written = [name for name in _SPARSE if columns[name]]
        if rows == self._rows and not (columns["removed_rows"] or columns["new_rows"] or columns["forks"]):
            record.starts_sum = sum(starts)
        else:
            written += ["rows", "starts"]
        if counts.count(1) != len(counts):
            written.append("counts")
        if samples != rows:
            written.append("sample_rows")
        if sources != first_numbers(len(samples)):
            written.append("sample_sources")
        for name in written:
            record.columns.add(field=FIELDS[name], values=pack_u32(columns[name]))
        self._rows = [] if columns["sample_counts"] else rows  # a shorter result moves the next `starts`
