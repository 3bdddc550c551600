"""kernels.paged_attention on a CPU with AVX512-BF16: blocks are read where they lie, nothing is gathered.

The operation, its shapes and the reference are those of kernels.paged_attention. What differs is the
order of the cache within a block, which kernels.cpu.store_kv writes and kernels.cpu.attention reads;
copying whole blocks works on both. Block sizes must be multiples of 16, head sizes of 32.
A query's result is bitwise the same in any company, in any chunk and in any blocks.

Bytes moved: each row's keys and values once per group of heads and 8 (query, head) pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from kernels.memory import zeros
from kernels.ranges import Integers, ranges
from kernels.row_kernels import float_bits, row_grain

if TYPE_CHECKING:
    from kernels.cpu.team import Team

Int64s = npt.NDArray[np.int64]

ITEM_WORDS = 5
QUERIES = 8
"""(query, head) pairs that are computed together; kernels.cpu.attention has registers for so many."""


class Scratch:
    """Memory of the threads of a team, as large as any step has needed."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def address(self, nbytes: int) -> int:
        """Of so many bytes."""
        if len(self._memory) < nbytes:
            self._memory = zeros((1 << (nbytes - 1).bit_length(),), torch.uint8)
        return self._memory.data_ptr()


@dataclass(frozen=True)
class BlockKernels:
    """The compiled operations on a cache in this order."""

    team: "Team"
    store: int  # kernels.cpu.store_kv.store_kv
    attend: int  # kernels.cpu.attention.attention
    check: Callable[[int], None]  # kernels.cpu.check_step.check_step
    prepare: Callable[[int], None]  # kernels.cpu.prepare_inputs.prepare_inputs
    scratch_bytes: Callable[[int, int], int]  # kernels.cpu.attention.scratch_bytes
    group: int  # query heads per KV head
    scratch: Scratch

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        rows: torch.Tensor,
    ) -> None:
        """As kernels.store_kv.store_kv."""
        tokens, heads, head_dim = key.shape
        if key.stride() != value.stride() or key.stride()[1:] != (head_dim, 1):
            key, value = key.contiguous(), value.contiguous()
        fields = (
            key.data_ptr(),
            value.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            rows.data_ptr(),
            2 * key.stride(0),
            heads,
            head_dim,
        )
        self.team.run_one(self.store, tokens, fields, row_grain(2 * heads * head_dim))


@dataclass(frozen=True)
class BlockPlan:
    """What the layers of one step with one window share."""

    kernels: BlockKernels
    items: Int64s  # [I, 5]: start of the row, address of its block table, its first token in the step,
    # the item's first (query, head) pair in the row, and how many
    addresses: Int64s  # [4]: the plan as kernels.cpu.attention reads it
    tables: Int64s  # that the items point at
    context: int  # the most positions of a row


def block_kernels(dtype: torch.dtype, block_size: int, head_dim: int, group: int) -> BlockKernels | None:
    """None where sizes do not fit. Call where kernels.cpu.support.why_not() is None."""
    if dtype != torch.bfloat16 or block_size % 16 or head_dim % 32:
        return None
    from kernels.cpu.attention import attention, scratch_bytes  # compiles, the first time
    from kernels.cpu.check_step import check_step
    from kernels.cpu.prepare_inputs import prepare_inputs
    from kernels.cpu.store_kv import store_kv
    from kernels.cpu.team import TEAM

    return BlockKernels(
        TEAM, store_kv, attention, check_step, prepare_inputs, scratch_bytes, group, Scratch()
    )


def plan_blocks(
    kernels: BlockKernels,
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    head_dim: int,
) -> BlockPlan:
    """starts, counts, block_tables: as in kernels.paged_attention.plan_attention."""
    tables = np.ascontiguousarray(block_tables, np.int64)
    items = _items(np.asarray(starts, np.int64), np.asarray(counts, np.int64), tables, kernels.group)
    return block_plan(kernels, items, tables, int((starts + counts).max()), window, head_dim)


def block_plan(
    kernels: BlockKernels, items: Int64s, tables: Int64s, context: int, window: int | None, head_dim: int
) -> BlockPlan:
    """items, tables: see BlockPlan. context: the most positions of a row."""
    size = kernels.scratch_bytes(context, head_dim)
    scratch = kernels.scratch.address(kernels.team.threads * size)
    addresses = np.array((items.ctypes.data, window or 0, scratch, size), np.int64)
    return BlockPlan(kernels, items, addresses, tables, context)


def _items(starts: Int64s, counts: Int64s, tables: Int64s, group: int) -> Int64s:
    """See BlockPlan. Long ones come first, so that no thread begins one when the others are done."""
    pairs = counts * group
    rows, numbers = ranges(np.zeros_like(pairs), -(-pairs // QUERIES))
    first = numbers * QUERIES
    held = np.minimum(QUERIES, pairs[rows] - first)
    table = tables.ctypes.data + rows * tables.strides[0]
    items = np.stack((starts[rows], table, (np.cumsum(counts) - counts)[rows], first, held), 1)
    ends = starts[rows] + (first + held - 1) // group
    return np.ascontiguousarray(items[np.argsort(-ends, kind="stable")])


def attention_fields(
    query: int,
    out: int,
    cache: tuple[torch.Tensor, torch.Tensor],
    plan: int,
    strides: tuple[int, int],
    num_heads: int,
    scale: float,
) -> tuple[int, ...]:
    """Of a record (kernels.cpu.attention). query, out, plan: addresses. cache: keys and values, [B, K, S, D].
    strides: bytes from token to token of queries and results."""
    _, num_kv_heads, block_size, head_dim = cache[0].shape
    return (
        query,
        cache[0].data_ptr(),
        cache[1].data_ptr(),
        out,
        plan,
        *strides,
        num_kv_heads,
        num_heads // num_kv_heads,
        head_dim,
        block_size,
        float_bits(scale),
    )


def block_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: BlockPlan,
    scale: float,
) -> torch.Tensor:
    """[T, H, D] -> [T, H, D], contiguous."""
    num_heads, head_dim = query.shape[1:]
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    out = query.new_empty(query.shape)
    fields = attention_fields(
        query.data_ptr(),
        out.data_ptr(),
        (key_cache, value_cache),
        plan.addresses.ctypes.data,
        (2 * query.stride(0), 2 * num_heads * head_dim),
        num_heads,
        scale,
    )
    units = len(plan.items) * key_cache.shape[1]
    plan.kernels.team.run_one(plan.kernels.attend, units, fields, 1)
    return out
