"""kernels.paged_attention on a CPU with AVX512-BF16: blocks are read where they lie, nothing is gathered.

The operation, its shapes and the reference are those of kernels.paged_attention. What differs is the
order of the cache within a block, which kernels.cpu.store_kv writes and kernels.cpu.attention reads;
copying whole blocks works on both. Block sizes must be multiples of 16, head sizes of 32.
A query's result is bitwise the same in any company, in any chunk and in any blocks.

Bytes moved: each row's keys and values once per group of heads and 8 (query, head) pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.ranges import Integers

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockKernels:
    """The compiled operations on a cache in this order, and how many threads they run on."""

    store: Callable[..., None]  # kernels.cpu.store_kv.store_kv_bf16
    attend: Callable[..., None]  # kernels.cpu.attention.attention_bf16
    scratch_bytes: Callable[[int, int], int]  # kernels.cpu.attention.scratch_bytes
    threads: int

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
        self.store(
            key.data_ptr(),
            value.data_ptr(),
            2 * key.stride(0),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            rows.data_ptr(),
            tokens,
            heads,
            head_dim,
        )


@dataclass(frozen=True)
class BlockPlan:
    """What the layers of one step with one window share."""

    kernels: BlockKernels
    starts: Int64s  # [R]
    counts: Int64s  # [R]
    tables: Int64s  # [R, N], contiguous
    window: int  # 0: none
    scratch: torch.Tensor  # [threads, bytes] uint8


def block_kernels(dtype: torch.dtype, block_size: int, head_dim: int) -> BlockKernels | None:
    """None where sizes do not fit. Call where kernels.cpu.support.why_not() is None."""
    if dtype != torch.bfloat16 or block_size % 16 or head_dim % 32:
        return None
    from kernels.cpu.attention import attention_bf16, scratch_bytes  # compiles, the first time
    from kernels.cpu.compiler import get_num_threads
    from kernels.cpu.store_kv import store_kv_bf16

    return BlockKernels(store_kv_bf16, attention_bf16, scratch_bytes, get_num_threads())


def plan_blocks(
    kernels: BlockKernels,
    starts: Integers,
    counts: Integers,
    block_tables: Integers,
    window: int | None,
    head_dim: int,
) -> BlockPlan:
    """starts, counts, block_tables: as in kernels.paged_attention.plan_attention."""
    size = kernels.scratch_bytes(int((starts + counts).max()), head_dim)
    return BlockPlan(
        kernels,
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(counts, np.int64),
        np.ascontiguousarray(block_tables, np.int64),
        window or 0,
        torch.empty((kernels.threads, -(-size // 64) * 64), dtype=torch.uint8),
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
    num_kv_heads, block_size = key_cache.shape[1:3]
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    out = query.new_empty(query.shape)
    plan.kernels.attend(
        query.data_ptr(),
        2 * query.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        out.data_ptr(),
        2 * num_heads * head_dim,
        plan.tables.ctypes.data,
        plan.tables.strides[0],
        plan.starts.ctypes.data,
        plan.counts.ctypes.data,
        len(plan.starts),
        num_kv_heads,
        num_heads // num_kv_heads,
        head_dim,
        block_size,
        plan.window,
        plan.scratch.data_ptr(),
        plan.scratch.stride(0),
        plan.kernels.threads,
        scale,
    )
    return out
