"""Launches of attention and of the kernels that work row by row, for benchmarks/gpu_compile.py."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_shapes import (
    BF16,
    BLOCK_SIZES,
    E4M3,
    FP16,
    FP32,
    GEMMA,
    HEADS,
    LLAMA_8B,
    SHORT,
    Heads,
    empty,
)

EVERYTHING = ("e4m3", "window", "cap", "sinks", "slopes")
Launch = Callable[[], Any]
STEPS = {"decode": (True, 512), "decode, splits": (True, 2), "prefill": (False, 2)}
"""Whether rows decode, and how many there are: as many as fill an H200 without splits, or fewer."""
OPTIONS: list[tuple[Heads, tuple[str, ...]]] = [
    (LLAMA_8B, ("window",)),
    (LLAMA_8B, ("sinks",)),
    (LLAMA_8B, ("sinks", "window")),
    (LLAMA_8B, ("slopes",)),
    (GEMMA, ("cap",)),
    (GEMMA, ("window", "cap")),
]


def attention(
    heads: Heads,
    dtype: torch.dtype,
    rows: int,
    decode: bool,
    block_size: int = 16,
    options: tuple[str, ...] = (),
) -> None:
    """options: of those in OPTIONS."""
    from kernels.triton.attention.fp8 import KVScales
    from kernels.triton.attention.paged_attention import PagedBatch, paged_attention

    tokens = rows if decode else 1024
    query = empty(tokens, heads.query, heads.dim, dtype=dtype)
    cache = empty(512, heads.kv, block_size, heads.dim, dtype=E4M3 if "e4m3" in options else dtype)
    decodes = rows if decode else 0
    batch = PagedBatch(empty(rows + 1), empty(rows), empty(rows, 64), decodes, decodes, 4096)
    per_head, per_kv = empty(heads.query, dtype=FP32), empty(heads.kv, dtype=FP32)
    paged_attention(
        query,
        cache,
        cache,
        batch,
        0.1,
        1000 if "window" in options else None,
        50.0 if "cap" in options else None,
        sinks=per_head if "sinks" in options else None,
        slopes=per_head if "slopes" in options else None,
        scales=KVScales(per_kv, per_kv) if "e4m3" in options else None,
    )


def attention_launches() -> Iterator[tuple[str, Launch]]:
    """Decode in splits and without, prefill; by heads, dtype, block size and option."""
    for step, (decode, rows) in STEPS.items():
        make = partial(attention, rows=rows, decode=decode)
        for heads in HEADS:
            for dtype in (BF16, FP32):
                yield f"{step} {SHORT[dtype]} {heads}", partial(make, heads, dtype)
            yield f"{step} bf16 {heads}, e4m3", partial(make, heads, BF16, options=("e4m3",))
            yield f"{step} bf16 {heads}, everything", partial(make, heads, BF16, options=EVERYTHING)
            if step != "decode":  # whose splits have everything that it has
                options = partial(make, heads, BF16, options=EVERYTHING[1:])
                yield f"{step} bf16 {heads}, all options", options
                everything = partial(make, heads, BF16, block_size=64, options=EVERYTHING)
                yield f"{step} bf16 {heads}, blocks of 64, everything", everything
            if step != "decode, splits" and heads != LLAMA_8B:
                yield f"{step} bf16 {heads}, blocks of 64", partial(make, heads, BF16, block_size=64)
        for dtype in (FP16, FP32):
            yield f"{step} {SHORT[dtype]} {LLAMA_8B}, e4m3", partial(make, LLAMA_8B, dtype, options=("e4m3",))
        yield f"{step} fp16 {LLAMA_8B}", partial(make, LLAMA_8B, FP16)
        for size in BLOCK_SIZES[1:]:
            name = f"bf16 {LLAMA_8B}, blocks of {size}"
            yield f"{step} {name}", partial(make, LLAMA_8B, BF16, block_size=size)
        for heads, options in OPTIONS:
            yield f"{step} bf16 {heads}, {', '.join(options)}", partial(make, heads, BF16, options=options)


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Norms by width, activations by kind, copies; what comes before attention."""
    from kernels.triton.cache.copy_blocks import gather_blocks, scatter_blocks
    from kernels.triton.elementwise.activation import activation, gated_activation
    from kernels.triton.elementwise.rms_norm import add_rms_norm, rms_norm

    for dtype in (BF16, FP32):
        for width in (896, 4096, 8192):
            x, weight = empty(32, width, dtype=dtype), empty(width, dtype=dtype)
            yield f"rms_norm {SHORT[dtype]} {width}", partial(rms_norm, x, weight, 1e-5)
            yield f"add_rms_norm {SHORT[dtype]} {width}", partial(add_rms_norm, x, x, weight, 1e-5)
        for kind in ("silu", "gelu", "gelu_new", "quick_gelu", "relu"):
            gate_up = empty(32, 28672, dtype=dtype)
            yield f"gated {kind} {SHORT[dtype]}", partial(gated_activation, gate_up, kind)
            yield f"plain {kind} {SHORT[dtype]}", partial(activation, gate_up, kind)
    for name, dtype in (("bf16", BF16), ("fp32", FP32), ("e4m3", E4M3)):
        cache, ids = empty(64, 512, 8, 16, 128, dtype=dtype), empty(4, dtype=torch.int64)
        yield f"gather_blocks {name}", partial(gather_blocks, cache, ids)
        buffer = empty(4, 64, 8, 16, 128, dtype=dtype)
        yield f"scatter_blocks {name}", partial(scatter_blocks, cache, buffer, ids)
    for heads in HEADS:
        yield from store_launches(heads)


def store_launches(heads: Heads) -> Iterator[tuple[str, Launch]]:
    """Rotation and store: with head norms, and into 8 bits."""
    from kernels.triton.attention.fp8 import KVScales
    from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv, store_kv

    qkv = empty(32, heads.query + 2 * heads.kv, heads.dim, dtype=BF16)
    query, key, value = qkv.split([heads.query, heads.kv, heads.kv], 1)
    angles, slots = empty(32, heads.dim, dtype=FP32), empty(32, dtype=torch.int64)
    cache = empty(512, heads.kv, 16, heads.dim, dtype=BF16)
    rotate = partial(rotary_store_kv, query, key, value, angles, angles, slots)
    yield f"rotary_store_kv bf16 {heads}", partial(rotate, cache, cache)
    yield f"store_kv bf16 {heads}", partial(store_kv, key, value, slots, cache, cache)
    weight, scale = empty(heads.dim, dtype=BF16), empty(heads.kv, dtype=FP32)
    norms, scales = HeadNorms(weight, weight, 1e-6), KVScales(scale, scale)
    yield f"rotary_store_kv bf16 {heads}, norms", partial(rotate, cache, cache, norms)
    cache = empty(512, heads.kv, 16, heads.dim, dtype=E4M3)
    yield f"rotary_store_kv bf16 {heads}, norms, e4m3", partial(rotate, cache, cache, norms, scales)


def vocabulary_launches() -> Iterator[tuple[str, Launch]]:
    """By model, dtype and number of rows, which decides on sizes."""
    from kernels.triton.elementwise.embedding import embed
    from kernels.triton.sampling.selected_logits import selected_logits

    for held, width in ((128256, 4096), (151936, 896), (50257, 768)):
        for dtype in (BF16, FP32):
            name = f"{SHORT[dtype]} {held} x {width}"
            table = empty(held, width, dtype=dtype)
            yield f"embed {name}", partial(embed, empty(32, dtype=torch.int64), table)
            for rows in (1, 32, 64, 256):
                hidden, ids = empty(512, width, dtype=dtype), empty(rows, dtype=torch.int64)
                yield f"selected_logits {name}, {rows} rows", partial(selected_logits, hidden, ids, table)
