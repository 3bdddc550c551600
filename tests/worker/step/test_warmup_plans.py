"""Plans that no request asked for fit the rows that they are made for."""

import pytest

from pagewire.ipc.columns import unpack_u32
from worker.step.plan_reader import apply_changes, read_step
from worker.step.rows import RowTable
from worker.step.warmup_plans import decode_plan, prefill_plan, removal_plan


@pytest.mark.parametrize(("one_block", "num_blocks"), [(True, 1), (False, 5)])
def test_rows_begin_compute_and_end(one_block: bool, num_blocks: int):
    rows = RowTable(max_num_rows=3, max_model_len=12, vocab_size=9, block_size=4, num_blocks=num_blocks)
    counts = [1, 9, 4]
    plan = prefill_plan(counts, rows.block_size, one_block=one_block)
    apply_changes(plan, rows, ())
    step = read_step(plan, rows, sum(counts))
    assert step.counts.tolist() == counts and step.sample_rows.tolist() == [0, 1, 2]
    blocks = [block for new in plan.new_rows for block in unpack_u32(new.blocks)]
    assert blocks == ([0] * 5 if one_block else list(range(5)))
    rows.finish_step(step.rows, step.starts + step.counts)
    rows.append(step.sample_rows, step.sample_rows)
    if one_block:  # the others have no block for one token more
        assert read_step(decode_plan([1]), rows, 1).starts.tolist() == [1]
    apply_changes(removal_plan(plan), rows, ())
    assert not rows.num_tokens.any()
