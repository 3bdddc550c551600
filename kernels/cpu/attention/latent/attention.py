"""Attention on a CPU over a paged cache of latents, for modules that do not compile it themselves.

    out[t, h] = sum_j p[j] * C[j, :R],   p = softmax_j(scale * q[t, h] . C[j])

for positions j up to that of the query: kernels.ops.attention.paged_attention with one KV head whose keys
are the latents C [B, 1, S, D], and whose values are their first R numbers. A latent is a row's compressed
keys and values, with a rotary part behind it.

D must be a multiple of 16, at most 1024, and block sizes too. A query's result has the same bits whatever
else is in the batch, however the prompt is cut, and whichever blocks hold it. Bytes moved: each row's latents
once per 8 (query, head) pairs.
"""

import torch

from kernels.cpu.attention.block_attention import BlockPlan, attention_record
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.records import StoreKVRecord
from kernels.cpu.attention.sizes import LATENT_QUERY, MOST_LATENT
from kernels.cpu.runtime.grain import row_grain


def latent_kernels(dtype: torch.dtype, block_size: int, width: int, num_heads: int) -> BlockKernels | None:
    """Returns the kernels for these sizes; None if they do not fit. width: D. Call only if
    kernels.cpu.requirements.why_not() is None."""
    fits = block_size % 16 == 0 and width % 16 == 0 and width <= MOST_LATENT
    if not fits or dtype not in (torch.bfloat16, torch.float32):
        return None
    from kernels.cpu.attention.latent import operations as kernels  # compiles, the first time

    if dtype == torch.float32:
        from kernels.cpu.attention.float32_kv import combine_parts_float32

        operations = kernels.store_latents_float32, kernels.latent_attention_float32, combine_parts_float32
    else:
        from kernels.cpu.attention.combine_parts import combine_parts

        operations = kernels.store_latents, kernels.latent_attention, combine_parts
    return BlockKernels(dtype, *operations, num_heads, block_size, query_bytes=LATENT_QUERY)


def store_record(latents: int, stride: int, plane: torch.Tensor, slot_rows: int) -> StoreKVRecord:
    """Returns the record of a store. latents, slot_rows: addresses. stride: bytes from token to token. plane:
    [B, 1, S, D]."""
    return StoreKVRecord(
        key=latents,
        value=0,
        key_cache=plane.data_ptr(),
        value_cache=0,
        slot_rows=slot_rows,
        stride=stride,
        heads=1,
        head_dim=plane.shape[3],
    )


def store_latents(
    kernels: BlockKernels, latents: torch.Tensor, plane: torch.Tensor, slot_rows: torch.Tensor
) -> None:
    """Writes latents [T, D], whose rows may lie apart, into their slots. slot_rows: [T] int64, see
    kernels.ops.attention.store_kv.slot_rows."""
    stride = latents.itemsize * latents.stride(0)
    record = store_record(latents.data_ptr(), stride, plane, slot_rows.data_ptr())
    kernels.team.run_one(kernels.store, len(latents), record, row_grain(plane.shape[3]))


def latent_attention(
    query: torch.Tensor, plane: torch.Tensor, plan: BlockPlan, scale: float, rank: int
) -> torch.Tensor:
    """[T, H, D] -> [T, H, R], contiguous. rank: R."""
    tokens, num_heads, width = query.shape
    out = query.new_empty((tokens, num_heads, rank))
    record = attention_record(
        query.data_ptr(),
        out.data_ptr(),
        (plane, plane),
        plan.address,
        (query.itemsize * query.stride(0), query.itemsize * num_heads * rank),
        num_heads,
        scale,
        value_dim=rank,
    )
    assert query.stride()[1:] == (width, 1)
    plan.attend(record)
    return out
