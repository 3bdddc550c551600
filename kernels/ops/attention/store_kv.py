"""Writes the keys and values of this step's tokens into their slots of the paged KV cache.

    key_cache[block, k, offset]   = key[t, k]      slots[t] = block * S + offset
    value_cache[block, k, offset] = value[t, k]

key, value:             [T, K, D]; may be strided views of a fused projection
key_cache, value_cache: [B, K, S, D], contiguous, the same dtype, or e4m3 (kernels.ops.attention.e4m3)
slots:                  [T] int64, all different but for padding, whose tokens are equal
Bytes moved: 4 * T * K * D values (two read, two written).

On CUDA: kernels.triton.attention.store_kv.
"""

import torch

from kernels.ops.attention.e4m3 import index_bytes, narrowed


def slot_rows(slots: torch.Tensor, num_kv_heads: int, block_size: int) -> torch.Tensor:
    """Where each head of each token goes in a cache seen as [B * K * S, D]: [T] -> [T * K] int64.

    It is the same in all layers of a step, so that it is computed once per step.
    """
    heads = torch.arange(num_kv_heads, device=slots.device)
    tiles = (slots // block_size)[:, None] * num_kv_heads + heads
    return (tiles * block_size + (slots % block_size)[:, None]).view(-1)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Writes in place. rows: slot_rows() of the step's slots."""
    head_dim = key.shape[-1]
    for x, cache in ((key, key_cache), (value, value_cache)):
        stored = index_bytes(narrowed(x.reshape(-1, head_dim), cache.dtype))
        index_bytes(cache).view(-1, head_dim).index_copy_(0, rows, stored)
