"""Records whose rows are parts of spans: tokens of one row in a step (kernels.ops.delta.spans)."""

from kernels.ops.delta.spans import Spans
from worker.lowering.builder import ProgramBuilder
from worker.lowering.program import ROWS, Records
from worker.model_input import InputBatch


def follow_spans(builder: ProgramBuilder, *works: tuple[int, int, int]) -> None:
    """Has each step say how many rows these records have, and where its spans are. works: the index of a
    record, its word for the spans, and its rows for each of them."""

    def update(batch: InputBatch, records: Records) -> None:
        assert isinstance(batch.spans, Spans)
        address, count = batch.spans.columns.ctypes.data, len(batch.spans)
        for index, word, parts in works:
            records[index, ROWS], records[index, word] = count * parts, address

    builder.on_batch(update)
