"""What a step's inputs look like."""

import numpy as np
import torch

from kernels.attention.kv_cache_spec import AttentionSpec, CacheLayout
from kernels.attention.torch_plan import TorchAttentionPlan
from tests.worker.step.test_rows import new_row
from worker.model_input import build_input_batch
from worker.step.rows import RowTable

CPU = torch.device("cpu")
FULL, WINDOWED = AttentionSpec(2, 8), AttentionSpec(2, 8, window=3)
LAYOUT = CacheLayout(block_size=4, num_blocks=20, dtype=torch.float32, device=CPU)


def table() -> RowTable:
    """Row 0: 9 tokens, row 1: 3, row 2: 6."""
    rows = RowTable(4, 64, 1000, 4, 20)
    rows.add(new_row(0, list(range(100, 109)), [5, 3, 9], prompt_len=9))
    rows.add(new_row(1, list(range(200, 203)), [7]))
    rows.add(new_row(2, list(range(300, 306)), [1, 0], prompt_len=2))
    return rows


def test_rows_are_ordered_for_attention():
    """Decoding rows by length, then pieces of prompts; samples still find their rows."""
    batch = build_input_batch(
        table(),
        np.array([2, 0, 1]),
        np.array([2, 8, 2]),
        np.array([4, 1, 1]),
        np.array([0, 1, 2, 0]),
        [FULL, WINDOWED],
        LAYOUT,
    )
    assert batch.token_ids.tolist() == [202, 108, 302, 303, 304, 305]
    assert batch.positions.tolist() == [2, 8, 2, 3, 4, 5]
    assert batch.prompt_lens.tolist() == [3, 9, 2, 2, 2, 2]
    assert batch.logit_tokens.tolist() == [5, 1, 0, 5]
    slots = torch.tensor([7 * 4 + 2, 9 * 4, 1 * 4 + 2, 1 * 4 + 3, 0, 1])
    first_head = slots // 4 * 8 + slots % 4  # (block * K + 0) * S + offset
    assert set(batch.attention) == {FULL, WINDOWED}
    for plan in batch.attention.values():
        assert isinstance(plan, TorchAttentionPlan)
        assert plan.slot_rows.view(-1, 2)[:, 0].tolist() == first_head.tolist()


def test_no_samples():
    batch = build_input_batch(
        table(), np.array([0]), np.array([0]), np.array([5]), np.empty(0, np.int64), [FULL], LAYOUT
    )
    assert len(batch.token_ids) == 5
    assert len(batch.logit_tokens) == 0
