"""kernels.ops.attention.store_kv on CUDA, and in the same launch what comes before it: head norms
(kernels.ops.layers.norms) and the rotation of queries and keys (kernels.ops.layers.rotary).

    x[t, h]     <- x / sqrt(mean(x ** 2) + eps) * weight          x: query, key; if the family has it (Qwen3)
    query[t, h] <- rotated(x)                                     in place
    key_cache[block, k, offset]   = rotated(x)                    slots[t] = block * S + offset
    value_cache[block, k, offset] = value[t, k]

query: [T, H, D]; key, value: [T, K, D], views of one fused projection as they come, tokens strided, heads
contiguous. cos, sin: [T, D] float32 as kernels.ops.layers.rotary describes them; weights: [D], one for all
query heads and one for all key heads. slots: [T] integers; -1 stores nothing: padding. Everything is
computed in float32 and rounded once, to the dtype or, into a cache of e4m3, to that
(kernels.triton.attention.fp8). float32, bfloat16, float16; any even D up to 256. Bytes moved: 2 * (H + 2 *
K) * D values per token, those stored half as large in e4m3, where the operations one after the other move 2
* K * D more for the rotation and 2 * (H + K) * D for the norms, and are five launches. Speed: not yet
measured on a GPU.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.fp8 import KVScales, quantized
from kernels.triton.requirements import next_power_of_2

HEADS = 8
"""Heads per program: at a head size of 128 and 4 warps a thread rotates two loads of 8 bytes with two
others."""


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms over each head, before the rotation."""

    query: torch.Tensor  # [D]
    key: torch.Tensor  # [D]
    eps: float


@triton.jit
def _normed(first, second, weight, eps, dims, HEAD_DIM: tl.constexpr):
    """Returns both halves of some heads after the norm, float32. Masked elements are 0 and stay 0."""
    half: tl.constexpr = HEAD_DIM // 2
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
    there = dims < half
    w = tl.load(weight + dims, mask=there, other=0.0).to(tl.float32)[None, :]
    v = tl.load(weight + half + dims, mask=there, other=0.0).to(tl.float32)[None, :]
    return first * factor * w, second * factor * v


@triton.jit
def _rotated(first, second, cos, sin, token, dims, HEAD_DIM: tl.constexpr):
    """Returns both halves of some heads after the rotation. The second halves of cos and sin have no sign."""
    half: tl.constexpr = HEAD_DIM // 2
    at = token * HEAD_DIM + half + dims
    c = tl.load(cos + at, mask=dims < half, other=0.0)[None, :]
    s = tl.load(sin + at, mask=dims < half, other=0.0)[None, :]
    return first * c - second * s, second * c + first * s


@triton.jit
def _load(at, inside, HEAD_DIM: tl.constexpr):
    """Loads both halves of some heads as float32."""
    first = tl.load(at, mask=inside, other=0.0)
    second = tl.load(at + HEAD_DIM // 2, mask=inside, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _put(cache, at, first, second, inside, scales, heads, NUM_KV: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Stores both halves of some heads in a cache."""
    if scales is None:
        first, second = first.to(cache.dtype.element_ty), second.to(cache.dtype.element_ty)
    else:
        scale = tl.load(scales + heads, mask=heads < NUM_KV, other=1.0)
        first, second = quantized(first, scale), quantized(second, scale)
    tl.store(cache + at, first, mask=inside)
    tl.store(cache + at + HEAD_DIM // 2, second, mask=inside)


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
    query_weight,  # [D], or None; so the next three
    key_weight,  # [D]
    key_scales,  # [K] float32
    value_scales,  # [K] float32
    query_stride,
    key_stride,
    value_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """The programs of a token are those of the query's heads, then of the key's, then of the value's."""
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
            first, second = _load(at, inside, HEAD_DIM)
            if query_weight is not None:
                first, second = _normed(first, second, query_weight, eps, dims, HEAD_DIM)
            first, second = _rotated(first, second, cos, sin, token, dims, HEAD_DIM)
            tl.store(at, first.to(query.dtype.element_ty), mask=inside)
            tl.store(at + half, second.to(query.dtype.element_ty), mask=inside)
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
        first, second = _load(key + token * key_stride + source, inside, HEAD_DIM)
        if key_weight is not None:
            first, second = _normed(first, second, key_weight, eps, dims, HEAD_DIM)
        if ROTATE:
            first, second = _rotated(first, second, cos, sin, token, dims, HEAD_DIM)
        _put(key_cache, target, first, second, inside, key_scales, heads, NUM_KV, HEAD_DIM)
    else:
        first, second = _load(value + token * value_stride + source, inside, HEAD_DIM)
        _put(value_cache, target, first, second, inside, value_scales, heads, NUM_KV, HEAD_DIM)


def rotary_store_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norms: HeadNorms | None = None,
    scales: KVScales | None = None,
) -> None:
    """Norms and rotates query in place, and stores the normed and rotated key, and the value. key itself is
    not changed."""
    assert cos.shape == sin.shape == (query.shape[0], query.shape[2])
    assert cos.is_contiguous() and sin.is_contiguous()
    _launch(query, key, value, cos, sin, slots, key_cache, value_cache, norms, scales)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scales: KVScales | None = None,
) -> None:
    """Stores keys and values without norm and rotation: for models with other position encodings."""
    _launch(None, key, value, None, None, slots, key_cache, value_cache, None, scales)


def _launch(
    query: torch.Tensor | None,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    norms: HeadNorms | None,
    scales: KVScales | None,
) -> None:
    tokens, num_kv, head_dim = key.shape
    assert head_dim % 2 == 0 and key_cache.is_contiguous() and value_cache.is_contiguous()
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1)
    assert key_cache.dtype == value_cache.dtype == (key.dtype if scales is None else E4M3)
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
            None if norms is None else norms.query,
            None if norms is None else norms.key,
            None if scales is None else scales.key,
            None if scales is None else scales.value,
            0 if query is None else query.stride(0),
            key.stride(0),
            value.stride(0),
            0.0 if norms is None else norms.eps,
            NUM_HEADS=num_heads,
            NUM_KV=num_kv,
            HEAD_DIM=head_dim,
            HALF=next_power_of_2(head_dim // 2),
            BLOCK_SIZE=key_cache.shape[2],
            HEADS=HEADS,
            ROTATE=query is not None,
            num_warps=4,
        )
