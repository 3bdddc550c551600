"""Sinks, ALiBi, a cache of 8 bits, and everything at once, against dense attention in float64."""

from typing import Any

import pytest
import torch

from kernels.triton.attention.fp8 import KVScales
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from tests.kernels.attention_cases import Case
from tests.kernels.tolerances import assert_close
from tests.kernels.triton.attention.test_paged_attention import to_device
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import dequantize_reference, quantize_reference

MIXED = [(5, 1), (70, 1), (0, 1), (0, 7), (20, 40), (0, 1)]
HEADS = 6
SINKS = torch.tensor([-3.0, 0.0, 2.5, 40.0, -60.0, 1.0])
"""Of one head all weight, of another none."""
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625, 1 / 32, 1 / 64])


def check(case: Case, where: Where, most_chunks: int | None = None, **options: Any) -> None:
    """Results of the kernels against exact ones. options: of both sides."""
    batch = to_device(case, where.device)
    moved = {name: x.to(where.device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    result = paged_attention(
        case.query, case.key_cache, case.value_cache, batch, case.scale, most_chunks=most_chunks, **moved
    )
    case.query = case.query.cpu()
    assert_close(result.cpu(), case.exact(**options), where.absolute, where.relative)


@pytest.mark.parametrize("options", [{"sinks": SINKS}, {"slopes": SLOPES}], ids=["sinks", "slopes"])
def test_in_one_step(where: Where, options: dict[str, Any]):
    """Decode and prefill."""
    check(Case(MIXED, where.dtype), where, **options)


@pytest.mark.usefixtures("short_chunks")
def test_sinks_and_slopes_of_shared_rows(where: Where):
    """A sink counts once, in a row of one chunk and in one of three; with a window, as GPT-OSS has it."""
    rows = [(150, 1), (5, 1), (64, 1)]
    check(Case(rows, where.dtype, block_size=16), where, 2, sinks=SINKS, slopes=SLOPES)
    check(Case(rows, where.dtype, block_size=16), where, 1, sinks=SINKS, window=70)


@pytest.mark.parametrize("chunk", [3, 50])
@pytest.mark.usefixtures("short_chunks")
def test_chunks(where: Where, chunk: int):
    """Rows that decode, shared and not, and prompts of several chunks."""
    check(Case(MIXED, where.dtype), where, window=chunk, chunked=True)
    check(Case([(150, 1), (5, 1), (64, 1)], where.dtype, block_size=16), where, 2, window=chunk, chunked=True)


def test_everything_at_once(where: Where):
    """In the order of the formula: the cap does not see the slope, nor the sink the cap."""
    options = {"sinks": SINKS, "slopes": SLOPES, "soft_cap": 0.9, "window": 20}
    check(Case([(40, 1), (10, 12)], where.dtype, block_size=16), where, **options)


def test_padding_rows_of_sinks_are_zero(where: Where):
    """All their weight is the sink's."""
    case = Case([(3, 1)], where.dtype)
    batch = to_device(case, where.device)
    none = PagedBatch(batch.query_starts, torch.zeros_like(batch.lengths), batch.block_tables, 128)
    caches = case.key_cache, case.value_cache
    result = paged_attention(case.query, *caches, none, case.scale, sinks=SINKS.to(where.device))
    assert not result.any()


def quantize(case: Case, scales: KVScales) -> None:
    """Replaces the caches, and what the exact result is computed from."""
    for name, dense, of in (("key", case.keys, scales.key), ("value", case.values, scales.value)):
        cache = getattr(case, f"{name}_cache")
        blocks = cache.transpose(1, 2).flatten(0, 1)  # [B * S, K, D]
        stored = quantize_reference(blocks, of).view(cache.transpose(1, 2).shape).transpose(1, 2)
        setattr(case, f"{name}_cache", stored.contiguous())
        dense[:] = [
            dequantize_reference(quantize_reference(x, of)[..., None, :], of)[..., 0, :] for x in dense
        ]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size", "most_chunks"),
    [(6, 2, 24, 4, 1), (14, 2, 64, 16, 2), (3, 1, 96, 48, 1), (8, 2, 128, 64, 3)],
)
@pytest.mark.usefixtures("short_chunks")
def test_a_cache_of_8_bits(
    where: Where, heads: int, kv_heads: int, head_dim: int, block_size: int, most_chunks: int
):
    """What is read is exact: the rest is arithmetic in the queries' dtype. A scale per KV head."""
    scales = KVScales(torch.tensor([0.02, 0.3][:kv_heads]), torch.tensor([0.5, 0.01][:kv_heads]))
    case = Case([(140, 1), (3, 1), (15, 20)], where.dtype, heads, kv_heads, head_dim, block_size)
    quantize(case, scales)
    batch = to_device(case, where.device)
    moved = KVScales(scales.key.to(where.device), scales.value.to(where.device))
    result = paged_attention(
        case.query, case.key_cache, case.value_cache, batch, case.scale, most_chunks=most_chunks, scales=moved
    )
    case.query = case.query.cpu()
    assert result.dtype == where.dtype
    assert_close(result.cpu(), case.exact(), where.absolute, where.relative)


def test_8_bits_cost_little():
    """The formula alone, against the cache that was not quantized: a few per cent."""
    case = Case([(60, 1), (30, 5)], torch.float32, head_dim=64, block_size=16, scale=0.125)
    exact = case.exact()
    largest = max(float(x.abs().max()) for x in (*case.keys, *case.values))
    scale = torch.full((2,), largest / 448)
    quantize(case, KVScales(scale, scale))
    difference = case.exact() - exact
    assert 1e-4 < float(difference.norm() / exact.norm()) < 0.05
