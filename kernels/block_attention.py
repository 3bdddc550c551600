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

from kernels.ranges import Integers, ranges
from kernels.row_kernels import float_bits, row_grain

if TYPE_CHECKING:
    from kernels.cpu.team import Team

Int64s = npt.NDArray[np.int64]

QUERIES = 8
"""(query, head) pairs that are computed together; kernels.cpu.attention has registers for so many."""


@dataclass(frozen=True)
class BlockKernels:
    """The compiled operations on a cache in this order."""

    team: "Team"
    store: int  # kernels.cpu.store_kv.store_kv
    attend: int  # kernels.cpu.attention.attention
    scratch_bytes: Callable[[int, int], int]  # kernels.cpu.attention.scratch_bytes
    group: int  # query heads per KV head

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
    items: Int64s  # [I, 4]: row, its first token in the step, first (query, head) pair, pairs
    starts: Int64s  # [R]
    tables: Int64s  # [R, N], contiguous
    scratch: torch.Tensor  # [threads, bytes] uint8
    addresses: Int64s  # [7]: the plan as kernels.cpu.attention reads it


def block_kernels(dtype: torch.dtype, block_size: int, head_dim: int, group: int) -> BlockKernels | None:
    """None where sizes do not fit. Call where kernels.cpu.support.why_not() is None."""
    if dtype != torch.bfloat16 or block_size % 16 or head_dim % 32:
        return None
    from kernels.cpu.attention import attention, scratch_bytes  # compiles, the first time
    from kernels.cpu.store_kv import store_kv
    from kernels.cpu.team import TEAM

    return BlockKernels(TEAM, store_kv, attention, scratch_bytes, group)


def plan_blocks(
    kernels: BlockKernels,
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    head_dim: int,
) -> BlockPlan:
    """starts, counts, block_tables: as in kernels.paged_attention.plan_attention."""
    begins, tables = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(block_tables, np.int64)
    items = _items(begins, np.asarray(counts, np.int64), kernels.group)
    size = -(-kernels.scratch_bytes(int((starts + counts).max()), head_dim) // 64) * 64
    scratch = torch.empty((kernels.team.threads, size), dtype=torch.uint8)
    parts = items.ctypes.data, tables.ctypes.data, begins.ctypes.data, tables.strides[0], window or 0
    addresses = np.array((*parts, scratch.data_ptr(), size), np.int64)
    return BlockPlan(kernels, items, begins, tables, scratch, addresses)


def _items(starts: Int64s, counts: Int64s, group: int) -> Int64s:
    """See BlockPlan. Long ones come first, so that no thread begins one when the others are done."""
    pairs = counts * group
    rows, numbers = ranges(np.zeros_like(pairs), -(-pairs // QUERIES))
    first = numbers * QUERIES
    items = np.stack(
        (rows, (np.cumsum(counts) - counts)[rows], first, np.minimum(QUERIES, pairs[rows] - first)), 1
    )
    ends = starts[rows] + first // group
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
