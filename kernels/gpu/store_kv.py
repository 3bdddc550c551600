"""kernels.store_kv on CUDA, and in the same launch the rotation of queries and keys (kernels.rotary).

    query[t, h] <- rotated(query[t, h])                           in place
    key_cache[block, k, offset]   = rotated(key[t, k])            slots[t] = block * S + offset
    value_cache[block, k, offset] = value[t, k]

query: [T, H, D]; key, value: [T, K, D], views of one fused projection as they come, tokens strided, heads
contiguous. cos, sin: [T, D] float32 as kernels.rotary describes them. slots: [T] integers; -1 stores
nothing: padding. Products in float32, rounded once. float32, bfloat16, float16; any even D up to 256.
Bytes moved: 2 * (H + 2 * K) * D values per token, where three operations one after the other move
2 * K * D more and are three launches. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.gpu.support import next_power_of_2

HEADS = 8
"""Of a program: at a head size of 128 and 4 warps a thread rotates two loads of 8 bytes with two others."""


@triton.jit
def _store_kernel(
    query,  # [T, H, D]
    key,  # [T, K, D]
    value,  # [T, K, D]
    cos,  # [T, D]
    sin,  # [T, D]
    slots,  # [T]
    key_cache,  # [B, K, S, D]
    value_cache,  # [B, K, S, D]
    query_stride,
    key_stride,
    value_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Programs of a token: those of the query's heads, then the key's, then the value's."""
    token = tl.program_id(0).to(tl.int64)
    query_programs: tl.constexpr = tl.cdiv(NUM_HEADS, HEADS) if ROTATE else 0
    kv_programs: tl.constexpr = tl.cdiv(NUM_KV, HEADS)
    program = tl.program_id(1)
    dims = tl.arange(0, HALF)
    half: tl.constexpr = HEAD_DIM // 2
    if ROTATE:  # noqa: SIM102 (query is None elsewhere: what follows must not be compiled)
        if program < query_programs:
            heads = program * HEADS + tl.arange(0, HEADS)
            inside = (heads < NUM_HEADS)[:, None] & (dims < half)[None, :]
            at = query + token * query_stride + heads[:, None] * HEAD_DIM + dims[None, :]
            first, second = _rotated(at, at + half, inside, cos, sin, token, dims, HEAD_DIM)
            tl.store(at, first, mask=inside)
            tl.store(at + half, second, mask=inside)
            return
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    program -= query_programs
    heads = program % kv_programs * HEADS + tl.arange(0, HEADS)
    inside = (heads < NUM_KV)[:, None] & (dims < half)[None, :]
    source = heads[:, None] * HEAD_DIM + dims[None, :]
    tiles = slot // BLOCK_SIZE * NUM_KV + heads
    target = (tiles * BLOCK_SIZE + slot % BLOCK_SIZE)[:, None] * HEAD_DIM + dims[None, :]
    if program < kv_programs:
        at = key + token * key_stride + source
        if ROTATE:
            first, second = _rotated(at, at + half, inside, cos, sin, token, dims, HEAD_DIM)
        else:
            first, second = tl.load(at, mask=inside), tl.load(at + half, mask=inside)
        tl.store(key_cache + target, first, mask=inside)
        tl.store(key_cache + target + half, second, mask=inside)
    else:
        at = value + token * value_stride + source
        tl.store(value_cache + target, tl.load(at, mask=inside), mask=inside)
        tl.store(value_cache + target + half, tl.load(at + half, mask=inside), mask=inside)


@triton.jit
def _rotated(first_at, second_at, inside, cos, sin, token, dims, HEAD_DIM: tl.constexpr):
    """Both halves of some heads. The second halves of cos and sin are those without a sign."""
    half: tl.constexpr = HEAD_DIM // 2
    at = token * HEAD_DIM + half + dims
    c = tl.load(cos + at, mask=dims < half, other=0.0)[None, :]
    s = tl.load(sin + at, mask=dims < half, other=0.0)[None, :]
    first, second = tl.load(first_at, mask=inside, other=0.0), tl.load(second_at, mask=inside, other=0.0)
    x, y = first.to(tl.float32), second.to(tl.float32)
    return (x * c - y * s).to(first.dtype), (y * c + x * s).to(first.dtype)


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """Rotates query in place, and stores the rotated key and the value. key itself stays."""
    assert cos.shape == sin.shape == (query.shape[0], query.shape[2])
    assert cos.is_contiguous() and sin.is_contiguous()
    _launch(query, key, value, cos, sin, slots, key_cache, value_cache)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    """Without rotation: of models that know positions otherwise."""
    _launch(None, key, value, None, None, slots, key_cache, value_cache)


def _launch(
    query: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> None:
    tokens, num_kv, head_dim = key.shape
    assert head_dim % 2 == 0 and key_cache.is_contiguous() and value_cache.is_contiguous()
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1)
    num_heads = 0 if query is None else query.shape[1]
    assert query is None or query.stride()[1:] == (head_dim, 1)
    programs = triton.cdiv(num_heads, HEADS) + 2 * triton.cdiv(num_kv, HEADS)
    if tokens:
        _store_kernel[(tokens, programs)](
            query,
            key,
            value,
            cos,
            sin,
            slots,
            key_cache,
            value_cache,
            0 if query is None else query.stride(0),
            key.stride(0),
            value.stride(0),
            NUM_HEADS=num_heads,
            NUM_KV=num_kv,
            HEAD_DIM=head_dim,
            HALF=next_power_of_2(head_dim // 2),
            BLOCK_SIZE=key_cache.shape[2],
            HEADS=HEADS,
            ROTATE=query is not None,
            num_warps=4,
        )
