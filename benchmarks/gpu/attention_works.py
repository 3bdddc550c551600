"""Attention for benchmarks/gpu/kernels.py, and what else computes it on the machine.

Peers read keys and values that lie contiguously, but for FlashInfer, which reads our blocks:

    sdpa          torch's scaled_dot_product_attention, as torch chooses
    flash, cudnn, efficient       the same by one backend; not all take grouped queries
    flex          FlexAttention, compiled for the shape
    flashinfer    if its wheel is there
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.works import BLOCK_SIZE, Call, Setting, Work
from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WORKSPACE_BYTES = 128 << 20
"""That FlashInfer asks for."""


@dataclass(frozen=True)
class Inputs:
    """Of R rows of L tokens, each with Q queries at its end, in shuffled blocks and contiguously."""

    query: torch.Tensor  # [R * Q, H, D]
    key_cache: torch.Tensor  # [B, K, S, D]
    value_cache: torch.Tensor  # [B, K, S, D]
    tables: torch.Tensor  # [R, N] int32
    keys: torch.Tensor  # [R, K, L, D]
    values: torch.Tensor  # [R, K, L, D]
    queries: int

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    @property
    def causal(self) -> bool:
        """A prompt alone; one query sees everything."""
        return self.queries > 1

    @property
    def dense_query(self) -> torch.Tensor:
        """[R, H, Q, D]."""
        return self.query.view(self.keys.shape[0], self.queries, *self.query.shape[1:]).transpose(1, 2)


def make_inputs(
    setting: Setting, heads: tuple[int, int, int], rows: int, length: int, queries: int
) -> Inputs:
    """heads: query heads, KV heads, head size."""
    num_heads, kv_heads, dim = heads
    blocks = -(-length // BLOCK_SIZE)
    caches = [setting.random(rows * blocks, kv_heads, BLOCK_SIZE, dim) for _ in range(2)]
    tables = torch.randperm(rows * blocks, device=setting.device).view(rows, blocks)
    keys, values = (
        stored[tables].transpose(1, 2).reshape(rows, kv_heads, -1, dim)[:, :, :length].contiguous()
        for stored in caches
    )
    query = setting.random(rows * queries, num_heads, dim)
    return Inputs(query, *caches, tables.to(torch.int32), keys, values, queries)


def our_call(inputs: Inputs, quantized: bool) -> Call:
    """Paged attention; quantized: out of a cache of 8 bits."""
    rows, kv_heads, length, _ = inputs.keys.shape
    integers = {"dtype": torch.int32, "device": inputs.query.device}
    batch = PagedBatch(
        torch.arange(0, rows * inputs.queries + 1, inputs.queries, **integers),
        torch.full((rows,), length, **integers),
        inputs.tables,
        length,
    )
    caches, scales = (inputs.key_cache, inputs.value_cache), None
    if quantized:
        caches = (inputs.key_cache.to(E4M3), inputs.value_cache.to(E4M3))
        ones = torch.ones(kv_heads, device=inputs.query.device)
        scales = KVScales(ones, ones)
    return lambda: paged_attention(inputs.query, *caches, batch, inputs.scale, scales=scales)


def sdpa(inputs: Inputs, backend: SDPBackend | None = None) -> torch.Tensor:
    """[R * Q, H, D]. backend: None for torch's choice."""
    with sdpa_kernel(backend) if backend is not None else nullcontext():
        out = F.scaled_dot_product_attention(
            inputs.dense_query,
            inputs.keys,
            inputs.values,
            is_causal=inputs.causal,
            scale=inputs.scale,
            enable_gqa=True,
        )
    return out.transpose(1, 2).reshape(inputs.query.shape)


@cache
def compiled_flex() -> Callable[..., torch.Tensor]:
    """One for all shapes: each compiles it anew."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=False)


def flex(inputs: Inputs) -> Call:
    """With a block mask that is made once, as a model does for all layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    mask = None
    if inputs.causal:
        length, device = inputs.keys.shape[2], inputs.query.device
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, str(device))
    run = compiled_flex()
    return lambda: run(
        inputs.dense_query, inputs.keys, inputs.values, scale=inputs.scale, block_mask=mask, enable_gqa=True
    )


def flashinfer(inputs: Inputs) -> Call:
    """Raises ImportError where there is none."""
    import flashinfer as library

    rows, kv_heads, length, dim = inputs.keys.shape
    integers = {"dtype": torch.int32, "device": inputs.query.device}
    blocks = inputs.tables.shape[1]
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.query.device)
    pages: tuple[Any, ...] = (
        torch.arange(0, rows * blocks + 1, blocks, **integers),
        inputs.tables.flatten(),
        torch.full((rows,), length - (blocks - 1) * BLOCK_SIZE, **integers),
        inputs.query.shape[1],
        kv_heads,
        dim,
        BLOCK_SIZE,
    )
    if inputs.causal:
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        starts = torch.arange(0, rows * inputs.queries + 1, inputs.queries, **integers)
        wrapper.plan(starts, *pages, causal=True, q_data_type=inputs.query.dtype)
    else:
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
        wrapper.plan(*pages, q_data_type=inputs.query.dtype, kv_data_type=inputs.query.dtype)
    return lambda: wrapper.run(inputs.query, (inputs.key_cache, inputs.value_cache))


def peers(inputs: Inputs, with_flex: bool = True) -> dict[str, Callable[[], Call]]:
    """What makes each peer's call, or raises where there is none. with_flex: it compiles for seconds."""
    found: dict[str, Callable[[], Call]] = {
        name: partial(partial, partial(sdpa, inputs, backend)) for name, backend in BACKENDS.items()
    }
    found |= {"flex": partial(flex, inputs)} if with_flex else {}
    return found | {"flashinfer": partial(flashinfer, inputs)}


def attention(
    setting: Setting,
    name: str,
    heads: tuple[int, int, int],
    rows: int,
    length: int,
    prefill: bool,
    quantized: bool = False,
) -> Work:
    """A decode step, or a prompt alone. quantized: no peer has such a cache."""
    inputs = make_inputs(setting, heads, rows, length, length if prefill else 1)
    kind = "prefill" if prefill else "decode"
    cache_bytes = 2 * inputs.keys.nbytes // (2 if quantized else 1)
    return Work(
        f"{kind} attention {name}, {rows} x {length}" + (", e4m3" if quantized else ""),
        our_call(inputs, quantized),
        None if quantized else partial(sdpa, inputs),
        num_bytes=0 if prefill else cache_bytes + 2 * inputs.query.nbytes,
        flops=2.0 * rows * length * length * heads[0] * heads[2] if prefill else 0,
        peers={} if quantized else peers(inputs, with_flex=name == "8B"),
    )


def attention_works(setting: Setting) -> Iterator[Callable[[], Work]]:
    """Decode by rows and length, prefill by length."""
    for name, heads in (("8B", (32, 8, 128)), ("0.5B", (14, 2, 64))):
        for rows, length in ((1, 1024), (1, 32768), (32, 1024), (32, 4096), (256, 1024)):
            count, tokens = setting.size(rows), setting.size(length, 65)
            yield partial(attention, setting, name, heads, count, tokens, False)
        for length in (1024, 4096, 8192):
            tokens = setting.size(length, 65)
            yield partial(attention, setting, name, heads, 1, tokens, True)
    count, tokens = setting.size(32), setting.size(4096, 65)
    yield partial(attention, setting, "8B", (32, 8, 128), count, tokens, False, True)
