"""The least time that a workload can take on a machine, by its memory and its arithmetic.

    prefill   max(FLOP of all prompts / peak, bytes of the weights / bandwidth)
    decode    max(FLOP of all further tokens / peak, steps * bytes of the weights / bandwidth)
    roof      output tokens / (prefill + decode)

A common prefix is computed once; there are as many steps as the longest output has tokens after its first;
the vocabulary's matrix is used once per output token; keys and values are not counted as bytes. FLOP: two
per weight and token, and 4 * heads * head size per layer for each pair of positions that attention compares.
Embeddings that are tied count once. int8: a byte per weight, and the int8 peak of the machine; int4: 4.5 bits
per weight, but for a byte of the vocabulary's matrix, and the int8 peak.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BYTES_PER_WEIGHT = {"bf16": 2, "int8": 1, "int4": (4 + 16 / 32) / 8}
"""Of matrices of layers. int4: a scale of 16 bits for 32 of them."""
HEAD_BYTES = {"bf16": 2, "int8": 1, "int4": 1}
"""Of the vocabulary's matrix."""
BYTES_IN_4_BITS = (4 + 8 / 32) / 8


@dataclass(frozen=True)
class Limits:
    """Of a machine."""

    bandwidth: float
    bf16: float
    int8: float

    def peak(self, weights: str) -> float:
        """Operations per second with such weights."""
        return self.bf16 if weights == "bf16" else self.int8


@dataclass(frozen=True)
class Shape:
    """Of a model, as far as its roof goes."""

    layers: int
    attention: int
    """heads * head size."""
    body: int
    """Weights of the matrices of all layers."""
    head: int
    """Weights of the vocabulary's matrix."""
    in_4_bits: int = 0
    """Of the body, those that the checkpoint holds in 4 bits with an exponent for 32 of them."""

    def read_bytes(self, weights: str) -> float:
        """Of all matrices that a step of one token reads."""
        of_body = (self.body - self.in_4_bits) * BYTES_PER_WEIGHT[weights] + self.in_4_bits * BYTES_IN_4_BITS
        return of_body + self.head * HEAD_BYTES[weights]


def shape_of(config: Mapping[str, Any]) -> Shape:
    """config: config.json of a Llama or one alike, of a DeepSeek-V3 without experts, or of a gpt-oss.
    Of experts as many count as a token has: of a batch's steps more are read."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    chosen = config.get("num_experts_per_tok") or 0
    if "moe_intermediate_size" in config and config.get("first_k_dense_replace") is None:
        inner = config["moe_intermediate_size"] * chosen
    elif "num_local_experts" in config:
        inner *= chosen
    layers, feed_forward = config["num_hidden_layers"], 3 * hidden * inner
    width, attention = _attention(config)
    packed = layers * feed_forward if "quantization_config" in config else 0
    return Shape(layers, width, layers * (attention + feed_forward), hidden * config["vocab_size"], packed)


def _attention(config: Mapping[str, Any]) -> tuple[int, int]:
    """heads * head size, and the weights of a layer's attention."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if "kv_lora_rank" in config:
        latent, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
        nope, value, query = (config[name] for name in ("qk_nope_head_dim", "v_head_dim", "q_lora_rank"))
        of_keys = hidden * (latent + rotary) + latent * heads * (nope + value)
        width = heads * (nope + rotary)
        return width, query * (hidden + width) + of_keys + heads * value * hidden
    head_dim = config.get("head_dim") or hidden // heads
    width, kv = heads * head_dim, config["num_key_value_heads"] * head_dim
    return width, hidden * (2 * width + 2 * kv)


def reading(size: int, threads: int) -> Callable[[], object]:
    """Returns a function that reads so many bytes, and compares them: to add them up takes longer."""
    parts = np.split(np.ones(threads * (size // threads // 4), np.float32), threads)
    pool = ThreadPoolExecutor(threads)  # numpy lets go of the interpreter's lock
    return lambda: list(pool.map(np.max, parts))


def roof_seconds(
    shape: Shape, weights: str, lengths: Sequence[tuple[int, int, int]], limits: Limits
) -> float:
    """The least time. lengths: (prefix, own, output) of each request, as in pagewire_bench.workloads."""
    peak = limits.peak(weights)
    read = shape.read_bytes(weights) / limits.bandwidth
    prefill = _flop(shape, 0, max(prefix for prefix, _, _ in lengths), 0)
    prefill += sum(_flop(shape, prefix, prefix + own, 1) for prefix, own, _ in lengths)
    decode = sum(
        _flop(shape, prefix + own, prefix + own + output - 1, output - 1) for prefix, own, output in lengths
    )
    steps = max(output for _, _, output in lengths) - 1
    return max(prefill / peak, read) + max(decode / peak, steps * read)


def _flop(shape: Shape, start: int, end: int, sampled: int) -> float:
    """Of positions start to end, of which so many bring a token."""
    pairs = (end * (end + 1) - start * (start + 1)) / 2
    return (
        2 * shape.body * (end - start) + 2 * shape.head * sampled + 4 * shape.layers * shape.attention * pairs
    )


def read_shape(folder: Path) -> Shape:
    """Of a checkpoint."""
    return shape_of(json.loads((folder / "config.json").read_text()))
