"""Plans as changes to the plan before."""

import dataclasses
from array import array

from engine_core.recording.plans import PlanWriter, columns_of
from engine_core.step.plan import ForkRow, MediaItem, NewRow, Plan, RowParameters
from pagewire.internal.v1.recording_pb2 import RecordedPlan
from pagewire_replay.reader import PlanReader
from tests.engine_core.fakes import resolved_sampling

NUMBERS = {2: 42}
"""Of requests, by row."""


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
        writer.write(columns_of(plan, NUMBERS, {}), record)
    return records


def test_what_is_written_is_read() -> None:
    reader = PlanReader()
    for plan, record in zip(plans(), write(plans()), strict=True):
        assert reader.read(record) == columns_of(plan, NUMBERS, {})


def test_items_of_media_are_numbers_in_the_order_in_which_they_are_encoded_first() -> None:
    first, second = (MediaItem(1, (), b"", digest, array("I", [0])) for digest in (b"a", b"b"))
    numbers: dict[bytes, int] = {}
    columns_of(Plan(step=1, rows=[2], encode=[first]), NUMBERS, numbers)
    found = columns_of(
        Plan(step=2, rows=[2], encode=[second, first], forgotten_media=[b"a"]), NUMBERS, numbers
    )
    assert (found["encode"], found["forgotten_media"]) == ([1, 0], [0])


def test_a_plan_that_goes_on_has_no_columns() -> None:
    record = write(plans())[2]
    assert not record.columns and record.starts_sum == 20


def test_a_plan_has_no_token_ids() -> None:
    columns = columns_of(plans()[0], NUMBERS, {})
    assert columns["new_rows"] == [2, 42, 1, 9, 2, 0, 3, 3, 4, 5]
    assert "append_token_ids" not in columns


def test_starts_that_are_not_those_of_the_sum_are_left_out() -> None:
    records = write(plans())
    records[2].starts_sum += 1
    reader = PlanReader()
    assert [reader.read(record) for record in records[:3]][2]["starts"] == []


def test_each_column_of_a_plan_is_recorded_but_for_tokens() -> None:
    names = {field.name for field in dataclasses.fields(Plan) if not field.name.startswith("_")}
    assert set(columns_of(plans()[0], NUMBERS, {})) == names - {"append_token_ids", "micro_batch"}
