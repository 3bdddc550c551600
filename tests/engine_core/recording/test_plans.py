"""Plans as changes to the plan before."""

from array import array

from engine_core.recording.plans import PlanReader, PlanWriter, columns_of
from engine_core.step.plan import ForkRow, NewRow, Plan, RowParameters
from pagewire.internal.v1.recording_pb2 import RecordedPlan
from tests.engine_core.fakes import resolved_sampling


def new_row(row: int) -> NewRow:
    return NewRow(
        row=row,
        token_ids=array("I", range(9)),
        prompt_len=7,
        blocks=[3, 4, 5],
        sequence_index=1,
        parameters=RowParameters(resolved_sampling(), 0, (), ()),
        prompt_logprobs_start=2,
    )


def plans() -> list[Plan]:
    first = Plan(step=1, new_rows=[new_row(2)], rows=[2], starts=[0], counts=[9], sample_rows=[2])
    first.sample_sources = [0]
    second = Plan(step=2, forks=[ForkRow(5, 2, 0)], rows=[2, 5], starts=[9, 9], counts=[1, 1])
    second.sample_rows, second.sample_sources = [2, 5], [0, 1]
    second.change_table(2, 3, [8])
    second.copy_block(5, 8)
    third = Plan(step=3, rows=[2, 5], starts=[10, 10], counts=[1, 1], sample_rows=[2, 5])
    third.sample_sources = [0, 1]
    fourth = Plan(step=4, removed_rows=[5], rows=[2], starts=[11], counts=[1])
    return [first, second, third, Plan(), fourth]


def write(plans: list[Plan]) -> list[RecordedPlan]:
    writer, records = PlanWriter(), [RecordedPlan() for _ in plans]
    for plan, record in zip(plans, records, strict=True):
        writer.write(columns_of(plan, lambda new: 42), record)
    return records


def test_what_is_written_is_read() -> None:
    reader = PlanReader()
    for plan, record in zip(plans(), write(plans()), strict=True):
        assert reader.read(record) == columns_of(plan, lambda new: 42)


def test_a_plan_that_goes_on_has_no_rows_and_no_starts() -> None:
    record = write(plans())[2]
    assert not (record.rows or record.starts or record.counts or record.sample_rows) and record.starts_sum


def test_a_plan_has_no_token_ids() -> None:
    (row,) = columns_of(plans()[0], lambda new: 42)["new_rows"]
    assert row == (2, 42, 1, 9, (3, 4, 5), 2, 0)


def test_starts_that_are_not_those_of_the_sum_are_left_out() -> None:
    records = write(plans())
    records[2].starts_sum += 1
    reader = PlanReader()
    assert [reader.read(record) for record in records[:3]][2]["starts"] == []
