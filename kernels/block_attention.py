"""kernels.paged_attention on a CPU with AVX512-BF16: blocks are read where they lie, nothing is gathered.

The operation, its shapes and the reference are those of kernels.paged_attention. What differs is the
order of the cache within a block, which kernels.cpu.store_kv writes and kernels.cpu.attention reads;
copying whole blocks works on both. Block sizes must be multiples of 16, head sizes of 32, up to 512.
A query's result is bitwise the same in any company, in any chunk and in any blocks.

Bytes moved: each row's keys and values once per group of heads and 8 (query, head) pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.memory import zeros
from kernels.ranges import Integers
from kernels.row_kernels import float_bits, row_grain

if TYPE_CHECKING:
    from kernels.cpu.team import Team

Int64s = npt.NDArray[np.int64]

ITEM_WORDS = 7
QUERIES = 8
"""(query, head) pairs that are computed together; kernels.cpu.attention has registers for so many."""
SPLIT_TOKENS = 8
"""Rows of more tokens have items enough for all threads."""
SHARES = 8
"""A row is split that is more than one of so many shares of a thread of all work."""
SETS = 4
"""Of places for parts, as of the other buffers of a layer (worker.decoder_program): so many layers after this
one, somebody may still be writing there."""


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
    combine: int  # kernels.cpu.attention_parts.combine_parts
    check: Callable[[int], None]  # kernels.cpu.check_step.check_step
    prepare: Callable[[int], None]  # kernels.cpu.prepare_inputs.prepare_inputs
    scratch_bytes: Callable[[int], int]  # kernels.cpu.attention.scratch_bytes
    partial_bytes: Callable[[int], int]  # kernels.cpu.attention_parts.partial_bytes
    part: int  # kernels.cpu.attention_vectors.PART
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


class PlanSizes(NamedTuple):
    """What a plan needs room for."""

    items: int  # I
    places: int  # for results of parts
    whole: int  # rows of more positions are split


@dataclass(frozen=True)
class BlockPlan:
    """What the layers of one step with one window share."""

    kernels: BlockKernels
    items: Int64s  # [I, 7]: start of the row, address of its block table, its first token in the step,
    # the item's first (query, head) pair in the row, and how many; its part, and the number of a place
    # for that part's result, or -1 and 0: all parts
    addresses: Int64s  # [6]: the plan as kernels.cpu.attention reads it
    tables: Int64s  # that the items point at
    context: int  # the most positions of a row
    partials: torch.Tensor  # [bytes]: the places for results of parts; empty where no row is split


def block_kernels(dtype: torch.dtype, block_size: int, head_dim: int, group: int) -> BlockKernels | None:
    """None where sizes do not fit. Call where kernels.cpu.support.why_not() is None."""
    if dtype != torch.bfloat16 or block_size % 16 or head_dim % 32:
        return None
    from kernels.cpu.attention import attention, scratch_bytes  # compiles, the first time
    from kernels.cpu.attention_parts import combine_parts, partial_bytes
    from kernels.cpu.attention_vectors import MOST_HEAD_DIM, PART
    from kernels.cpu.check_step import check_step
    from kernels.cpu.prepare_inputs import prepare_inputs
    from kernels.cpu.store_kv import store_kv
    from kernels.cpu.team import TEAM

    if head_dim > MOST_HEAD_DIM:
        return None
    return BlockKernels(
        team=TEAM,
        store=store_kv,
        attend=attention,
        combine=combine_parts,
        check=check_step,
        prepare=prepare_inputs,
        scratch_bytes=scratch_bytes,
        partial_bytes=partial_bytes,
        part=PART,
        group=group,
        scratch=Scratch(),
    )


def plan_blocks(
    kernels: BlockKernels,
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    head_dim: int,
    kv_heads: int,
) -> BlockPlan:
    """starts, counts, block_tables: as in kernels.paged_attention.plan_attention."""
    tables = np.ascontiguousarray(block_tables, np.int64)
    context = int((starts + counts).max())
    _, places, whole = plan_sizes(kernels, starts, counts, int(counts.sum()), context)
    items = _items(kernels, starts, counts, tables, whole)
    return block_plan(kernels, items, tables, context, places, window, (kv_heads, head_dim))


def plan_sizes(
    kernels: BlockKernels, starts: Integers, counts: Integers, num_tokens: int, context: int
) -> PlanSizes:
    """starts, counts: of rows, that compute so many tokens. context: the most positions of a row."""
    group, part, rows = kernels.group, kernels.part, len(counts)
    whole = max(context, part)
    if context > part:
        ends = starts + counts
        whole = max(part, int(ends @ counts) // (SHARES * kernels.team.threads))
    if context <= whole and num_tokens == rows:
        return PlanSizes(rows * -(-group // QUERIES), 0, whole)
    items = -(-counts * group // QUERIES)
    if context <= whole:
        return PlanSizes(int(items.sum()), 0, whole)
    split = (ends > whole) & (counts <= SPLIT_TOKENS)
    items = np.where(split, items * -(-ends // part), items)
    return PlanSizes(int(items.sum()), int(items[split].sum()), whole)


def block_plan(
    kernels: BlockKernels,
    items: Int64s,
    tables: Int64s,
    context: int,
    places: int,
    window: int | None,
    shape: tuple[int, int],
) -> BlockPlan:
    """items, tables, context: see BlockPlan. places: for results of parts. shape: KV heads, head size."""
    kv_heads, head_dim = shape
    size = kernels.scratch_bytes(head_dim)
    scratch = kernels.scratch.address(kernels.team.threads * size)
    set_bytes = places * kv_heads * kernels.partial_bytes(head_dim)
    partials = torch.empty(SETS * set_bytes, dtype=torch.uint8)
    addresses = items.ctypes.data, window or 0, scratch, size, partials.data_ptr(), set_bytes
    return BlockPlan(kernels, items, np.array(addresses, np.int64), tables, context, partials)


def _items(kernels: BlockKernels, starts: Integers, counts: Integers, tables: Int64s, whole: int) -> Int64s:
    """See BlockPlan. Long ones come first, so that no thread begins one when the others are done."""
    items, places, token = [], 0, 0
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        table, pairs, end = tables.ctypes.data + row * tables.strides[0], count * kernels.group, start + count
        split = count <= SPLIT_TOKENS and end > whole
        for first in range(0, pairs, QUERIES):
            item = start, table, token, first, min(QUERIES, pairs - first)
            if split:
                parts = -(-end // kernels.part)
                items += [(*item, part, places + part) for part in range(parts)]
                places += parts
            else:
                items.append((*item, -1, 0))
        token += count

    def length(item: tuple[int, ...]) -> int:
        """The positions that an item looks at."""
        start, first, pairs, part = item[0], *item[3:6]
        end = start + (first + pairs - 1) // kernels.group + 1
        return min(end - part * kernels.part, kernels.part) if part >= 0 else end

    return np.array(sorted(items, key=length, reverse=True), np.int64)


def attention_fields(
    query: int,
    out: int,
    cache: tuple[torch.Tensor, torch.Tensor],
    plan: int,
    strides: tuple[int, int],
    num_heads: int,
    scale: float,
    places: int = 0,
) -> tuple[int, ...]:
    """Of a record (kernels.cpu.attention), and of that of combine_parts() after it. query, out, plan:
    addresses. cache: keys and values, [B, K, S, D]. strides: bytes from token to token of queries and
    results. places: which set of them the layer has."""
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
        float_bits(scale) & 0xFFFFFFFF | places << 32,
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
    if len(plan.partials):
        plan.kernels.team.run_one(plan.kernels.combine, units, fields, 1)
    return out
