"""Attention on keys and values of 8 bits is attention on a cache of the queries' dtype that holds the same
numbers, bit for bit; and torch's attention, in a cache of 8 bits too, is close to both."""

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import block_attention, block_kernels
from kernels.ops.attention.e4m3 import E4M3, narrowed
from kernels.ops.attention.paged_attention import paged_attention
from kernels.ops.attention.store_kv import slot_rows, store_kv
from tests.kernels.attention_cases import MIXED, Case
from tests.kernels.block_plans import plan_blocks
from tests.kernels.tolerances import assert_close

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCES = {BF16: (1.6e-2, 1.6e-2), F32: (1e-5, 1e-5)}
BOTH = pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
PAIRED = [(96, 1), (75, 1), (40, 1), (0, 33)]


def case_of(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, rows: list[tuple[int, int]] = MIXED
) -> Case:
    """Of numbers up to 900, some of which 8 bits cannot hold."""
    case = Case(rows, dtype, heads, kv_heads, head_dim, 16, scale=0.05)
    for dense in (case.keys, case.values):
        for row in dense:
            row.mul_(4)
            row[0, 0, :2] = torch.tensor([900.0, 2**-9])
    return case


def attend(
    case: Case, e4m3: bool, window: int | None = None, tables: np.ndarray | None = None
) -> torch.Tensor:
    """By our kernels, of a cache of 8 bits, or of one of the queries' dtype with the same numbers."""
    tokens, heads, head_dim = case.query.shape
    kv_heads, dtype = case.key_cache.shape[1], case.query.dtype
    kernels = block_kernels(dtype, 16, head_dim, heads // kv_heads, e4m3)
    assert kernels is not None
    caches = [torch.full(case.key_cache.shape, torch.nan, dtype=dtype) for _ in range(2)]
    if e4m3:
        caches = [torch.full(cache.shape, 0x7F, dtype=torch.uint8).view(E4M3) for cache in caches]
    tables = case.tables if tables is None else tables
    for table, key, value in zip(tables, case.keys, case.values, strict=True):
        positions = np.arange(len(key))
        slots = table[positions // 16] * 16 + positions % 16
        rows = slot_rows(torch.from_numpy(slots), kv_heads, 16)
        if not e4m3:
            key, value = (narrowed(x, E4M3).to(dtype) for x in (key, value))
        kernels.store_kv(key, value, caches[0], caches[1], rows)
    plan = plan_blocks(kernels, case.starts, case.counts, tables, window, head_dim, kv_heads)
    return block_attention(case.query, caches[0], caches[1], plan, case.scale)


@pytest.mark.cpu_kernels
@BOTH
@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(6, 2, 32), (4, 4, 72), (9, 3, 64), (8, 1, 128), (2, 1, 200)]
)
def test_the_same_numbers(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, window: int | None):
    """Nothing of slots that were never written either, which hold NaN."""
    case = case_of(dtype, heads, kv_heads, head_dim)
    result = attend(case, True, window)
    assert torch.isfinite(result).all() and torch.equal(result, attend(case, False, window))


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("heads", [3, 4])
def test_rows_with_the_same_first_blocks(heads: int):
    """Which are one item, where heads are of 64 values."""
    case = case_of(BF16, heads, 1, 64, PAIRED)
    tables = case.tables.copy()
    tables[1, :3] = tables[0, :3]
    case.keys[1][:48], case.values[1][:48] = case.keys[0][:48], case.values[0][:48]
    assert torch.equal(attend(case, True, tables=tables), attend(case, False))


@BOTH
def test_torch(dtype: torch.dtype):
    """What the compiled kernels are replaced by where they do not fit."""
    case = case_of(dtype, 6, 2, 24)
    stored = [torch.full(case.key_cache.shape, torch.nan).to(E4M3) for _ in range(2)]
    for cache in stored:
        cache[0] = 0
    for table, key, value in zip(case.tables, case.keys, case.values, strict=True):
        positions = np.arange(len(key))
        slots = table[positions // 16] * 16 + positions % 16
        store_kv(key, value, stored[0], stored[1], slot_rows(torch.from_numpy(slots), 2, 16))
        for dense in (key, value):
            dense.copy_(narrowed(dense, E4M3))
    result = paged_attention(case.query, stored[0], stored[1], case.plan(None), case.scale)
    assert_close(result, case.exact(None), *TOLERANCES[dtype])
