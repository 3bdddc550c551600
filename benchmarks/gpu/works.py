"""What benchmarks/gpu/kernels.py measures: operations on inputs of models' shapes, our way and torch's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.layers.norms import rms_norm_reference
from kernels.triton.attention.store_kv import HeadNorms, rotary_store_kv
from kernels.triton.blocks import copy_blocks
from kernels.triton.elementwise.activation import gated_activation
from kernels.triton.elementwise.rms_norm import add_rms_norm
from kernels.triton.matmul.linear import linear
from tests.kernels.references.layers import gated_activation_reference, rotary_reference

Call = Callable[[], Any]
BLOCK_SIZE = 64


@dataclass(frozen=True)
class Work:
    """One operation, ours and torch's."""

    name: str
    ours: Call
    theirs: Call | None
    num_bytes: float = 0  # moved at least
    flops: float = 0  # computed; 0: it is the bytes that count
    compare: bool = True  # the results are the same but for rounding
    compiled: bool = False  # torch.compile theirs
    peers: Mapping[str, Callable[[], Call]] = field(default_factory=dict)  # make others' calls, or raise


@dataclass(frozen=True)
class Setting:
    """Where and how large."""

    device: torch.device
    dtype: torch.dtype = torch.bfloat16
    shrink: int = 1  # sizes are divided by it: to try the benchmark itself

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.float32).to(dtype or self.dtype)

    def size(self, n: int, least: int = 1) -> int:
        return max(least, n // self.shrink)


def row_works(setting: Setting) -> Iterator[Callable[[], Work]]:
    """Norms, activations, rotation and store, lookups, by tokens; logits by rows; copies."""
    for tokens in (32, 256, 8192):
        count = setting.size(tokens)
        for make in (norm, gated, rotation, partial(rotation, norms=True)):
            yield partial(make, setting, count)
    for rows in (1, 32, 256):
        yield partial(logits, setting, setting.size(rows))
    for tokens in (1, 32, 256, 8192):
        for features, depth in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
            yield partial(product, setting, setting.size(tokens), features, depth)
    yield partial(copies, setting)


def norm(setting: Setting, tokens: int) -> Work:
    width = setting.size(4096)
    x, residual = setting.random(tokens, width), setting.random(tokens, width)
    weight = setting.random(width)
    return Work(
        f"add_rms_norm {tokens} x {width}",
        lambda: add_rms_norm(x, residual, weight, 1e-5)[0],
        lambda: rms_norm_reference(x + residual, weight, 1e-5),
        num_bytes=4 * x.nbytes,
        compiled=True,
    )


def gated(setting: Setting, tokens: int) -> Work:
    width = setting.size(14336)
    gate_up = setting.random(tokens, 2 * width)
    return Work(
        f"gated silu {tokens} x {width}",
        lambda: gated_activation(gate_up, "silu"),
        lambda: gated_activation_reference(gate_up, "silu"),
        num_bytes=1.5 * gate_up.nbytes,
        compiled=True,
    )


def rotation(setting: Setting, tokens: int, norms: bool = False) -> Work:
    """norms: over each head of query and key first, as Qwen3 has them."""
    qkv = setting.random(tokens, 48, 128)
    query, key, value = qkv.split([32, 8, 8], 1)
    angles = setting.random(tokens, 64, dtype=torch.float32)
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    blocks = -(-tokens // BLOCK_SIZE)
    caches = [setting.random(blocks, 8, BLOCK_SIZE, 128) for _ in range(2)]
    slots = torch.randperm(blocks * BLOCK_SIZE, device=setting.device)[:tokens]
    theirs, weight = [cache.clone() for cache in caches], setting.random(128)
    ours = HeadNorms(weight, weight, 1e-6) if norms else None

    def torch_way() -> None:
        heads = rms_norm_reference(qkv[:, :40], weight, 1e-6) if norms else qkv[:, :40]
        rotated = rotary_reference(heads, cos, sin)
        query.copy_(rotated[:, :32])
        block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
        theirs[0][block, :, offset] = rotated[:, 32:]
        theirs[1][block, :, offset] = value

    return Work(
        f"rotary_store_kv {'with norms, ' if norms else ''}{tokens} tokens",
        lambda: rotary_store_kv(query, key, value, cos, sin, slots, *caches, ours),
        torch_way,
        num_bytes=2 * qkv.nbytes,
        compare=False,
        compiled=True,
    )


def logits(setting: Setting, rows: int) -> Work:
    """In float32. Torch rounds the product to the dtype and widens it."""
    width = setting.size(4096)
    table, hidden = setting.random(setting.size(128256), width), setting.random(rows, width)
    return Work(
        f"head {rows} x {width} x {table.shape[0]}",
        lambda: linear(hidden, table, None, True),
        lambda: F.linear(hidden, table).float(),
        num_bytes=table.nbytes + 4 * rows * table.shape[0],
    )


def product(setting: Setting, tokens: int, features: int, depth: int) -> Work:
    """In one order of addition, beside torch's."""
    features, depth = setting.size(features), setting.size(depth)
    weight, x = setting.random(features, depth), setting.random(tokens, depth)
    return Work(
        f"product {tokens} x {depth} x {features}",
        lambda: linear(x, weight),
        lambda: F.linear(x, weight),
        num_bytes=weight.nbytes + x.nbytes + tokens * features * x.element_size(),
    )


def copies(setting: Setting) -> Work:
    cache = setting.random(2 * setting.size(32), 64, 8, BLOCK_SIZE, 128)
    order = torch.randperm(64, device=setting.device)
    moved = 8 * cache.nbytes // 64
    return Work(
        "copy_blocks, 8 blocks of 32 layers",
        lambda: copy_blocks(cache, order[:8], order[8:16]),
        lambda: cache.index_copy_(1, order[8:16], cache.index_select(1, order[:8])),
        num_bytes=4 * moved,
        compare=False,
    )
