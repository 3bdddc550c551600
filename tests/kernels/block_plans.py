"""Attention plans of blocks, made from columns as tests have them."""

import numpy as np

from kernels.cpu.attention.block_attention import BlockPlan, block_plan
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import plan_sizes
from kernels.ops.attention.ragged import Integers
from tests.kernels.work_items import list_items


def plan_blocks(
    kernels: BlockKernels,
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    head_dim: int,
    kv_heads: int,
    chunked: bool = False,
    bidirectional: bool = False,
) -> BlockPlan:
    """starts, counts, block_tables, window, chunked, bidirectional: as in
    kernels.ops.attention.gather_plan.plan_attention."""
    tables = np.ascontiguousarray(block_tables, np.int64)
    context = int((starts + counts).max())
    sizes = plan_sizes(kernels, starts, counts, int(counts.sum()), context)
    if window is not None:
        sizes = sizes._replace(joined=0)
    items, made = list_items(kernels, starts, counts, tables, sizes)
    listed = items, np.array([made]), tables, context, sizes.places
    return block_plan(kernels, *listed, window, (kv_heads, head_dim), chunked, bidirectional)
