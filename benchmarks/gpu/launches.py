"""The table of launches for benchmarks/gpu/compile.py: each kernel in the configurations that its launcher
chooses for models' shapes, on tensors without memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.low_bits import FORMS
from kernels.ops.experts.routing import Routing, Score
from kernels.ops.layers.adapters import DeviceAdapters
from kernels.ops.sampling.token_masks import Prohibitions
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import DeviceSpans
from kernels.triton.adapters.adapt import adapt, adapt_embeddings, adapt_experts, adapt_heads
from kernels.triton.adapters.pairs import with_adapters
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.latent_attention import latent_attention, store_latents
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv, store_kv
from kernels.triton.blocks import gather_blocks, scatter_blocks
from kernels.triton.elementwise.activation import activation, clamped_swiglu, gated_activation
from kernels.triton.elementwise.rms_norm import add_rms_norm, rms_norm
from kernels.triton.experts.combine import combine, weigh
from kernels.triton.experts.dispatch import order_by_head, sort_by_expert
from kernels.triton.experts.grouped_linear import grouped_linear
from kernels.triton.experts.grouped_low_bit_linear import grouped_low_bit_linear
from kernels.triton.experts.route import route
from kernels.triton.matmul.linear import linear
from kernels.triton.matmul.low_bit_linear import low_bit_linear
from kernels.triton.matmul.low_bit_weight import LowBitWeight
from kernels.triton.matmul.ranges import SumOrder
from kernels.triton.sampling.adjust_logits import Adjustments, adjust_logits
from kernels.triton.sampling.draws import Draws, Filters
from kernels.triton.sampling.filtered_sample import filtered_sample
from kernels.triton.sampling.forbid_tokens import forbid_tokens
from kernels.triton.sampling.logprobs import MOST, token_logprobs, top_n
from kernels.triton.sampling.sample import argmax, sample
from kernels.triton.sampling.tile_stats import GROUP, TILE, TileStats, tile_stats
from kernels.triton.sampling.typical_p import typical_p
from kernels.triton.states.convolution import convolution
from kernels.triton.states.delta_rule import delta_rule
from kernels.triton.states.norms import gated_norm, grouped_norm
from kernels.triton.states.selective_scan import selective_scan
from kernels.triton.step.copy_segments import copy_segments
from kernels.triton.step.prepare_inputs import StepInputs, append_tokens, prepare_inputs
from kernels.triton.step.token_history import History, count_tokens, record_tokens

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3 = torch.float8_e4m3fn
SHORT = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


@dataclass(frozen=True)
class Heads:
    """Of a model's attention."""

    query: int
    kv: int
    dim: int
    models: str

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} x {self.dim}"


LLAMA_8B = Heads(32, 8, 128, "Llama-3-8B")
GEMMA = Heads(16, 8, 256, "Gemma-2-9B")
BGE_M3 = Heads(16, 16, 64, "bge-m3")
HEADS = [
    LLAMA_8B,
    Heads(14, 2, 64, "Qwen2.5-0.5B"),
    Heads(32, 32, 80, "Phi-2"),
    Heads(32, 32, 96, "Phi-3-mini"),
    GEMMA,
    Heads(71, 1, 64, "Falcon-7B"),
]
BLOCK_SIZES = [16, 32, 64, 128, 256]


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Shape, strides and dtype, no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


EVERYTHING = ("e4m3", "window", "cap", "sinks", "slopes")
Launch = Callable[[], Any]
OPTIONS: list[tuple[Heads, tuple[str, ...]]] = [
    (LLAMA_8B, ("window",)),
    (LLAMA_8B, ("sinks",)),
    (LLAMA_8B, ("sinks", "window")),
    (LLAMA_8B, ("slopes",)),
    (GEMMA, ("cap",)),
    (GEMMA, ("window", "cap")),
    (GEMMA, ("last_seen",)),
    (GEMMA, ("window", "last_seen")),
    (BGE_M3, ("bidirectional",)),
    (BGE_M3, ("bidirectional", "window")),
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
        bidirectional="bidirectional" in options,
        last_seen=empty(tokens, dtype=torch.int64) if "last_seen" in options else None,
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
    query, cache = empty(32, heads, 576, dtype=BF16), empty(512, 1, 64, 576, dtype=BF16)
    batch = PagedBatch(empty(33), empty(32), empty(32, 64), 4096)
    latent_attention(query, cache, batch, 0.1, 512, splits)


def row_launches() -> Iterator[tuple[str, Launch]]:
    """Norms by width, activations by kind, copies; what comes before attention."""
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
    for held, width in ((128256, 4096), (151936, 896), (50257, 768)):
        for dtype in (BF16, FP32):
            name = f"{SHORT[dtype]} {held} x {width}"
            table = empty(held, width, dtype=dtype)
            for rows in (1, 32, 64, 256):
                hidden = empty(rows, width, dtype=dtype)
                yield f"head {name}, {rows} rows", partial(linear, hidden, table, None, True)


PRODUCTS = {"qkv": (6144, 4096), "output": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336)}
"""Weights of Llama-3-8B."""
LEAVES = {"output": 4, "down": 8}
"""Of those whose inputs ranks may divide."""


def product_launches() -> Iterator[tuple[str, Launch]]:
    """By weight and number of tokens, which decides on the schedule; with a bias; of odd shapes."""
    yield from low_bit_launches()
    for tokens in (1, 32, 64, 128, 512):
        for name, shape in PRODUCTS.items():
            x, weight = empty(tokens, shape[1], dtype=BF16), empty(*shape, dtype=BF16)
            order = SumOrder(shape[0], LEAVES.get(name, 0))
            yield f"product bf16 {name}, {tokens} tokens", partial(linear, x, weight, order=order)
        for dtype in (BF16, FP16, FP32):
            x, weight, bias = (empty(*shape, dtype=dtype) for shape in ((tokens, 4864), (896, 4864), (896,)))
            yield f"product {SHORT[dtype]} 896 x 4864, {tokens} tokens", partial(linear, x, weight, bias)
        odd = empty(tokens, 1000, dtype=BF16), empty(1001, 1000, dtype=BF16)
        yield f"product bf16 1001 x 1000, {tokens} tokens", partial(linear, *odd)


EXPERTS = {"Qwen3-30B": (128, 8, 768, 2048), "Mixtral": (8, 2, 14336, 4096), "gpt-oss": (32, 4, 2880, 2880)}
"""How many there are, how many a token has, their width, and the model's."""


def adapter_launches() -> Iterator[tuple[str, Launch]]:
    """Of the layers of Llama-3-8B, its head and its lookup, the experts of Qwen3-30B, and the heads of
    DeepSeek-V3; for few tokens and many, of 8 adapters."""
    for tokens in (32, 8192):
        for dtype in (BF16, FP16, FP32):
            x, y = empty(tokens, 4096, dtype=dtype), empty(tokens, 6144, dtype=dtype)
            name = f"adapters {SHORT[dtype]}, {tokens} tokens"
            yield name, partial(adapt, y, x, 0, step_adapters(tokens, 3))
        name, step = f"adapters bf16, {tokens} tokens", step_adapters(tokens, 1)
        x, ids = empty(tokens, 4096, dtype=BF16), empty(tokens, dtype=torch.int64)
        yield f"{name}, logits", partial(adapt, empty(tokens, 128256, dtype=FP32), x, 0, step)
        yield f"{name}, lookup", partial(adapt_embeddings, x, ids, 0, step, 128256)
        yield f"{name}, experts", partial(adapted_experts, tokens)
        heads = empty(tokens, 128, 128, dtype=BF16), empty(128, tokens, 512, dtype=BF16).transpose(0, 1)
        yield f"{name}, heads", partial(adapt_heads, *reversed(heads), 0, step)


def step_adapters(tokens: int, parts: int) -> DeviceAdapters:
    """Of 8 adapters."""
    long = torch.int64
    columns = empty(tokens, dtype=long), empty(tokens // 16 + 8, 3, dtype=long), empty(8, 3, dtype=long)
    return DeviceAdapters.of(*columns, parts=(parts,))


def adapted_experts(tokens: int) -> None:
    """The order of pairs, and what is added to both products."""
    count, top_k, width, hidden = EXPERTS["Qwen3-30B"]
    chosen, step = empty(tokens, top_k, dtype=torch.int64), step_adapters(tokens, 2)
    order = with_adapters(sort_by_expert(chosen, count, BF16), chosen, count, step)
    x, inner = empty(tokens, hidden, dtype=BF16), empty(tokens * top_k, width, dtype=BF16)
    adapt_experts(empty(tokens * top_k, 2 * width, dtype=BF16), x, 0, step, order, by_token=True)
    adapt_experts(empty(tokens * top_k, hidden, dtype=BF16), inner, 0, step_adapters(tokens, 1), order)


def expert_launches() -> Iterator[tuple[str, Launch]]:
    """The whole of a layer's experts, by model and number of tokens."""
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
    meta = torch.device("meta")
    for tokens in (1, 64, 512):
        for kind, (code, group_size) in FORMS.items():
            for name in ("qkv", "down"):
                x = empty(tokens, PRODUCTS[name][1], dtype=BF16)
                weight = LowBitWeight.empty(PRODUCTS[name], code, group_size, meta)
                yield f"low-bit {kind} {name}, {tokens} tokens", partial(low_bit_linear, x, weight)
    for tokens in (1, 64, 512, 4096):
        for kind in FORMS:
            for model in ("Qwen3-30B", "gpt-oss"):
                name = f"low-bit {kind} experts of {model}, {tokens} tokens"
                yield name, partial(low_bit_experts, model, tokens, kind)


def low_bit_experts(model: str, tokens: int, kind: str) -> None:
    """Both products. kind: of FORMS."""
    count, top_k, width, hidden = EXPERTS[model]
    code, group_size = FORMS[kind]
    chosen = empty(tokens, top_k, dtype=torch.int64)
    order = sort_by_expert(chosen, count, BF16, most_pairs=code.most_rows)
    for inputs, outputs, rows, pairs in (
        (hidden, 2 * width, order.tokens, tokens),
        (width, hidden, None, tokens * top_k),
    ):
        weight = LowBitWeight.empty((count, outputs, inputs), code, group_size, torch.device("meta"))
        bias = empty(count, outputs, dtype=BF16) if model == "gpt-oss" else None
        grouped_low_bit_linear(empty(pairs, inputs, dtype=BF16), weight, bias, order, rows)


QWEN3_NEXT = DeltaShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128)
MAMBAS = {
    "Granite 4 H Small": MambaShape(heads=128, head_dim=64, groups=1, state_size=128),
    "Falcon-H1": MambaShape(heads=32, head_dim=128, groups=2, state_size=256),
}
ROWS, TOKENS, SLOTS, TAPS = 33, 256, 48, 4


def state_launches() -> Iterator[tuple[str, Launch]]:
    """Convolutions, recurrences and norms."""
    spans = DeviceSpans(empty(ROWS), empty(ROWS), empty(1), empty(ROWS + 1), empty(4, ROWS + 15)[:, :ROWS])
    delta, heads = QWEN3_NEXT, QWEN3_NEXT.value_heads
    state = empty(SLOTS, heads, delta.key_dim, delta.value_dim, dtype=FP32)
    projected = empty(TOKENS, delta.channels + delta.values + 2 * heads, dtype=BF16)
    convolved, gate, gates = projected.split_with_sizes((delta.channels, delta.values, 2 * heads), 1)
    taps = empty(TAPS, delta.channels, dtype=FP32), empty(delta.channels, dtype=FP32)
    last = empty(SLOTS, TAPS - 1, delta.channels, dtype=FP32)
    mixed = empty(TOKENS, delta.channels, dtype=FP32)
    rates = empty(heads, dtype=FP32), empty(heads, dtype=FP32)
    yield "states Qwen3-Next, convolution", partial(convolution, convolved, *taps, last, spans)
    yield "states Qwen3-Next", partial(delta_rule, mixed, gates, *rates, state, delta, spans)
    scanned, weight = empty(TOKENS, heads, delta.value_dim, dtype=FP32), empty(delta.value_dim, dtype=BF16)
    yield "states Qwen3-Next, norm", partial(gated_norm, scanned, gate, weight, 1e-6)
    for name, mamba in MAMBAS.items():
        state = empty(SLOTS, mamba.heads, mamba.state_size, mamba.head_dim, dtype=FP32)
        mixed = empty(TOKENS, mamba.channels, dtype=FP32)
        scan_rates = ScanRates(empty(3, mamba.heads, dtype=FP32))
        steps = empty(TOKENS, mamba.heads, dtype=BF16)
        yield f"states {name}", partial(selective_scan, mixed, steps, scan_rates, state, mamba, spans)
        scanned, gate = empty(TOKENS, mamba.values, dtype=FP32), empty(TOKENS, mamba.values, dtype=BF16)
        weight = empty(mamba.values, dtype=BF16)
        yield f"states {name}, norm", partial(grouped_norm, scanned, gate, weight, mamba.groups, 1e-6)


def step_launches() -> Iterator[tuple[str, Launch]]:
    """Inputs of a step, and copies."""
    rows = 32
    numbers, ids = empty(rows), empty(rows, dtype=torch.int64)
    out = StepInputs(*(ids,) * 4, empty(rows + 1), numbers, empty(rows, 512))
    columns = numbers, numbers, numbers, empty(1), empty(512, 8192), empty(512, 512), empty(512), 16, out
    yield "prepare_inputs", partial(prepare_inputs, *columns)
    yield "copy_segments", partial(copy_segments, *(empty(1 << 20),) * 2, numbers, numbers, numbers)
    yield "append_tokens", partial(append_tokens, ids, ids, empty(512, 8192), empty(512))


def sampler_launches(vocab_size: int) -> Iterator[tuple[str, Launch]]:
    """Of one vocabulary: the number of tiles is a constant of the kernels."""
    rows, slots = 32, 8
    numbers, shares, tokens = empty(rows), empty(rows, dtype=FP32), empty(rows, dtype=torch.int64)
    draws, filters = Draws(shares, tokens, numbers, numbers), Filters(numbers, shares, shares)
    logits, words = empty(rows, vocab_size, dtype=FP32), empty(slots, -(-vocab_size // 32))
    counts, biased = (
        empty(slots, vocab_size),
        (empty(slots, 300), empty(slots, 300, dtype=FP32), empty(slots)),
    )
    state = Adjustments(empty(slots, 3, dtype=FP32), counts, words, *biased)
    masked = Adjustments(state.strengths, counts, words, *biased, words)
    tiles = -(-vocab_size // TILE)
    groups, mass = empty(rows, tiles * TILE // GROUP, dtype=FP32), empty(rows, tiles, dtype=torch.float64)
    stats = TileStats(empty(rows, tiles, dtype=FP32), empty(rows, tiles), mass, groups)
    history = History(empty(512), empty(512), empty(512), counts, empty(slots, 4096))
    forbidden = Prohibitions(
        empty(slots, 40), empty(slots, 40, 3), history.outputs, empty(slots, 5), empty(slots, 5)
    )
    calls: dict[str, Launch] = {
        "argmax": partial(argmax, logits),
        "sample": partial(sample, logits, draws),
        "tile_stats with groups": partial(tile_stats, logits, shares, True),
        "filtered_sample": partial(filtered_sample, logits, draws, filters, stats, tokens),
        "adjust_logits": partial(adjust_logits, logits, numbers, numbers, state),
        "adjust_logits, mask": partial(adjust_logits, logits, numbers, numbers, masked),
        "top_n 1": partial(top_n, logits, 1),
        "top_n 20": partial(top_n, logits, 20),
        f"top_n {MOST}": partial(top_n, logits, MOST),
        "token_logprobs": partial(token_logprobs, logits, empty(rows, 21)),
        "record_tokens": partial(record_tokens, tokens, tokens, history),
        "count_tokens": partial(count_tokens, empty(1024), 1000, 3, counts, words),
        "forbid_tokens": partial(forbid_tokens, logits, numbers, numbers, forbidden),
        "typical_p": partial(typical_p, logits, shares, filters, shares),
    }
    yield from ((f"{name} {vocab_size}", call) for name, call in calls.items())


def launches() -> list[tuple[str, Launch]]:
    """Everything, by name."""
    return [
        *attention_launches(),
        *latent_launches(),
        *row_launches(),
        *product_launches(),
        *adapter_launches(),
        *expert_launches(),
        *state_launches(),
        *vocabulary_launches(),
        *step_launches(),
        *(launch for vocab_size in (32000, 128256, 151936) for launch in sampler_launches(vocab_size)),
    ]
