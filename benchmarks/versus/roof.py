"""The least time that a workload can take on a machine, by its memory and its arithmetic.

    prefill   max(FLOP of all prompts / peak, bytes of the weights / bandwidth)
    decode    max(FLOP of all further tokens / peak, steps * bytes of the weights / bandwidth)
    roof      output tokens / (prefill + decode)

A common prefix is computed once; there are as many steps as the longest output has tokens after its first;
the vocabulary's matrix is used once per output token; keys and values are not counted as bytes. FLOP: two
per weight and token, and 4 * heads * head size per layer for each pair of positions that attention compares.
Embeddings that are tied count once. int8: a byte per weight, and the int8 peak of the machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES_PER_WEIGHT = {"bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Limits:
    """Of a machine."""

    bandwidth: float
    bf16: float
    int8: float

    def peak(self, weights: str) -> float:
        """Operations per second with such weights."""
        return self.int8 if weights == "int8" else self.bf16


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


def shape_of(config: Mapping[str, Any]) -> Shape:
    """config: config.json of a Llama or one alike. Of experts as many count as a token has: of a batch's
    steps more are read."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    attention, kv = heads * head_dim, config["num_key_value_heads"] * head_dim
    inner = config["intermediate_size"]
    if "moe_intermediate_size" in config:
        inner = config["moe_intermediate_size"] * config["num_experts_per_tok"]
    layer = hidden * (2 * attention + 2 * kv + 3 * inner)
    layers = config["num_hidden_layers"]
    return Shape(layers, attention, layers * layer, hidden * config["vocab_size"])


def roof_seconds(
    shape: Shape, weights: str, lengths: Sequence[tuple[int, int, int]], limits: Limits
) -> float:
    """The least time. lengths: (prefix, own, output) of each request, as in pagewire.bench.workloads."""
    peak = limits.peak(weights)
    read = (shape.body + shape.head) * BYTES_PER_WEIGHT[weights] / limits.bandwidth
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
