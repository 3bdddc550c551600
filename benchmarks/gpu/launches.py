"""Launches of attention and of the kernels that work row by row, for benchmarks/gpu/compile.py."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.low_bits import FORMS
from benchmarks.gpu.shapes import (
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
    block_size: int = 16,
    options: tuple[str, ...] = (),
    tokens: int = 1024,
    rows: int = 32,
) -> None:
    """options: of those in OPTIONS."""
    from kernels.triton.attention.fp8 import KVScales
    from kernels.triton.attention.paged_attention import PagedBatch, paged_attention

    query = empty(tokens, heads.query, heads.dim, dtype=dtype)
    cache = empty(512, heads.kv, block_size, heads.dim, dtype=E4M3 if "e4m3" in options else dtype)
    batch = PagedBatch(empty(rows + 1), empty(rows), empty(rows, 64), 4096)
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
    """By heads, dtype, block size and option."""
    make = attention
    for heads in HEADS:
        for dtype in (BF16, FP32):
            yield f"attention {SHORT[dtype]} {heads}", partial(make, heads, dtype)
        if heads.dim <= 128:  # the largest for a cache of 8 bits
            yield f"attention bf16 {heads}, e4m3", partial(make, heads, BF16, options=("e4m3",))
            yield f"attention bf16 {heads}, everything", partial(make, heads, BF16, options=EVERYTHING)
        options = partial(make, heads, BF16, options=EVERYTHING[1:])
        yield f"attention bf16 {heads}, all options", options
        yield f"attention bf16 {heads}, blocks of 64", partial(make, heads, BF16, block_size=64)
        if heads.dim <= 128:
            everything = partial(make, heads, BF16, block_size=64, options=EVERYTHING)
            yield f"attention bf16 {heads}, blocks of 64, everything", everything
    for dtype in (FP16, FP32):
        yield f"attention {SHORT[dtype]} {LLAMA_8B}, e4m3", partial(make, LLAMA_8B, dtype, options=("e4m3",))
    yield f"attention fp16 {LLAMA_8B}", partial(make, LLAMA_8B, FP16)
    for size in BLOCK_SIZES[1:]:
        if size != 64:
            yield (
                f"attention bf16 {LLAMA_8B}, blocks of {size}",
                partial(make, LLAMA_8B, BF16, block_size=size),
            )
    for heads, options in OPTIONS:
        yield f"attention bf16 {heads}, {', '.join(options)}", partial(make, heads, BF16, options=options)


def latent_launches() -> Iterator[tuple[str, Launch]]:
    """Attention over latents and what comes before it, for DeepSeek-V3's shape and a small one."""
    from kernels.triton.attention.latent_attention import store_latents
    from kernels.triton.experts.dispatch import order_by_head

    meta = torch.device("meta")
    for heads in (128, 16):
        for splits in (1, 4):
            name = f"latents bf16 {heads} heads{', splits' if splits > 1 else ''}"
            yield name, partial(latents, heads, splits)
    slots = empty(32, dtype=torch.int64)
    cache = empty(512, 1, 64, 576, dtype=BF16)
    yield "store_latents bf16", partial(store_latents, empty(32, 576, dtype=BF16), slots, cache)
    yield "heads in order", partial(order_by_head, 32, 128, BF16, meta)


def latents(heads: int, splits: int) -> None:
    """splits: programs that share a token's context."""
    from kernels.triton.attention.latent_attention import latent_attention
    from kernels.triton.attention.paged_attention import PagedBatch

    query, cache = empty(32, heads, 576, dtype=BF16), empty(512, 1, 64, 576, dtype=BF16)
    batch = PagedBatch(empty(33), empty(32), empty(32, 64), 4096)
    latent_attention(query, cache, batch, 0.1, 512, splits)


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Norms by width, activations by kind, copies; what comes before attention."""
    from kernels.triton.blocks import gather_blocks, scatter_blocks
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
    from kernels.triton.matmul.linear import linear

    for held, width in ((128256, 4096), (151936, 896), (50257, 768)):
        for dtype in (BF16, FP32):
            name = f"{SHORT[dtype]} {held} x {width}"
            table = empty(held, width, dtype=dtype)
            for rows in (1, 32, 64, 256):
                hidden = empty(rows, width, dtype=dtype)
                yield f"head {name}, {rows} rows", partial(linear, hidden, table, None, True)


PRODUCTS = {"qkv": (6144, 4096), "output": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336)}
"""Weights of Llama-3-8B."""


def product_launches() -> Iterator[tuple[str, Launch]]:
    """By weight and number of tokens, which decides on the schedule; with a bias; of odd shapes."""
    from kernels.triton.matmul.linear import linear

    yield from low_bit_launches()
    for tokens in (1, 32, 64, 128, 512):
        for name, shape in PRODUCTS.items():
            x, weight = empty(tokens, shape[1], dtype=BF16), empty(*shape, dtype=BF16)
            yield f"product bf16 {name}, {tokens} tokens", partial(linear, x, weight)
        for dtype in (BF16, FP16, FP32):
            x, weight, bias = (empty(*shape, dtype=dtype) for shape in ((tokens, 4864), (896, 4864), (896,)))
            yield f"product {SHORT[dtype]} 896 x 4864, {tokens} tokens", partial(linear, x, weight, bias)
        odd = empty(tokens, 1000, dtype=BF16), empty(1001, 1000, dtype=BF16)
        yield f"product bf16 1001 x 1000, {tokens} tokens", partial(linear, *odd)


EXPERTS = {"Qwen3-30B": (128, 8, 768, 2048), "Mixtral": (8, 2, 14336, 4096), "gpt-oss": (32, 4, 2880, 2880)}
"""How many there are, how many a token has, their width, and the model's."""


def expert_launches() -> Iterator[tuple[str, Launch]]:
    """The whole of a layer's experts, by model and number of tokens."""
    from kernels.triton.elementwise.activation import clamped_swiglu
    from kernels.triton.experts.combine import weigh

    for tokens in (1, 64, 512, 4096):
        for model in EXPERTS:
            yield f"experts bf16 {model}, {tokens} tokens", partial(experts, model, tokens, BF16)
    for dtype in (FP16, FP32):
        for tokens in (1, 512):
            name = f"experts {SHORT[dtype]} Qwen3-30B, {tokens} tokens"
            yield name, partial(experts, "Qwen3-30B", tokens, dtype)
    yield from routing_launches()
    weights = empty(32, 2, dtype=FP32)
    for dtype in (BF16, FP32):
        yield f"weigh {SHORT[dtype]}", partial(weigh, empty(32, 4096, dtype=dtype), weights, empty(32, 2))
        name, gate_up = f"clamped swiglu {SHORT[dtype]}", empty(32, 5760, dtype=dtype)
        yield name, partial(clamped_swiglu, gate_up, 1.702, 7.0)


def experts(model: str, tokens: int, dtype: torch.dtype) -> None:
    """The order of pairs, both products, and the sum with what all tokens have."""
    from kernels.triton.experts.combine import combine
    from kernels.triton.experts.dispatch import sort_by_expert
    from kernels.triton.experts.grouped_linear import grouped_linear

    count, top_k, width, hidden = EXPERTS[model]
    order = sort_by_expert(empty(tokens, top_k, dtype=torch.int64), count, dtype)
    x, bias = empty(tokens, hidden, dtype=dtype), None
    if model == "gpt-oss":
        bias = empty(count, 2 * width, dtype=dtype)
    grouped_linear(x, empty(count, 2 * width, hidden, dtype=dtype), bias, order, order.tokens)
    gated = empty(tokens * top_k, width, dtype=dtype)
    y = grouped_linear(gated, empty(count, hidden, width, dtype=dtype), None, order)
    combine(y, empty(tokens, top_k, dtype=FP32), order.places, x, empty(tokens, dtype=FP32))


def routing_launches() -> Iterator[tuple[str, Launch]]:
    """In published forms."""
    from kernels.ops.experts.routing import Routing, Score
    from kernels.triton.experts.route import route

    grouped = Routing(
        num_experts=256,
        top_k=8,
        score=Score.SIGMOID,
        groups=8,
        top_groups=4,
        group_best=2,
        normalized=True,
        least_sum=1e-20,
        scale=2.5,
    )
    forms = {
        "DeepSeek-V3": grouped,
        "Qwen3-30B": Routing(num_experts=128, top_k=8, normalized=True),
        "gpt-oss": Routing(num_experts=32, top_k=4, score=Score.SOFTMAX_OF_CHOSEN),
        "sparse mixer": Routing(num_experts=16, top_k=2, score=Score.SPARSE_MIXER, tolerance=0.02),
        "4096 experts": Routing(num_experts=4096, top_k=8),
    }
    for name, routing in forms.items():
        correction = empty(routing.num_experts, dtype=FP32) if routing is grouped else None
        yield f"route {name}", partial(route, empty(32, routing.num_experts, dtype=FP32), correction, routing)


def low_bit_launches() -> Iterator[tuple[str, Launch]]:
    """Of weights in 4 and 8 bits: with groups, and a scale per row."""
    from kernels.triton.matmul.low_bit_linear import low_bit_linear
    from kernels.triton.matmul.low_bit_weight import empty_low_bits

    meta = torch.device("meta")
    for tokens in (1, 64, 512):
        for kind, (code, group_size) in FORMS.items():
            for name in ("qkv", "down"):
                x = empty(tokens, PRODUCTS[name][1], dtype=BF16)
                weight = empty_low_bits(PRODUCTS[name], code, group_size, meta)
                yield f"low-bit {kind} {name}, {tokens} tokens", partial(low_bit_linear, x, weight)
    for tokens in (1, 64, 512, 4096):
        for kind in FORMS:
            for model in ("Qwen3-30B", "gpt-oss"):
                name = f"low-bit {kind} experts of {model}, {tokens} tokens"
                yield name, partial(low_bit_experts, model, tokens, kind)


def low_bit_experts(model: str, tokens: int, kind: str) -> None:
    """Both products. kind: of FORMS."""
    from kernels.triton.experts.dispatch import sort_by_expert
    from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
    from kernels.triton.matmul.low_bit_weight import empty_low_bits, padded_rows

    count, top_k, width, hidden = EXPERTS[model]
    code, group_size = FORMS[kind]
    chosen = empty(tokens, top_k, dtype=torch.int64)
    order = sort_by_expert(chosen, count, BF16, most_pairs=code.most_rows)
    for inputs, outputs, rows, pairs in (
        (hidden, 2 * width, order.tokens, tokens),
        (width, hidden, None, tokens * top_k),
    ):
        shape = count * padded_rows(outputs), inputs
        weight = empty_low_bits(shape, code, group_size, torch.device("meta"))
        bias = empty(count, outputs, dtype=BF16) if model == "gpt-oss" else None
        grouped_low_bit_linear(empty(pairs, inputs, dtype=BF16), weight, outputs, bias, order, rows)
