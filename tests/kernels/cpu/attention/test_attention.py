"""Attention as a whole: compiled code gives what Python gives with the same functions. To the bit where the
weights are bfloat16 and a row has one part; elsewhere but for the roundings of e ** x."""

from typing import Any

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import (
    attention_record,
    block_attention,
    block_kernels,
    scoring_record,
)
from kernels.cpu.attention.latent.attention import latent_attention, latent_kernels, store_latents
from kernels.cpu.attention.records import AttentionRecord
from kernels.cpu.compiler.records import Operation
from kernels.ops.attention.e4m3 import E4M3
from kernels.ops.attention.store_kv import slot_rows
from tests.kernels.block_plans import plan_blocks
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
BLOCKS, KV_HEADS, WIDTH = 40, 2, 20


def in_python(operation: Operation[AttentionRecord], units: int, record: AttentionRecord) -> None:
    """As a record of a program, all of whose units are taken: the operation looks up which one comes next."""
    from kernels.cpu.runtime.records import ProgramRecord
    from kernels.cpu.runtime.thread_pool import Program

    work = Program(1)
    work.put(0, operation, units, record, 1)
    own = ProgramRecord.at(work.address, 1)
    own.units, own.middle, own.claim = units, units, units << 22 | units
    operation.reference(AttentionRecord.at(own.address), 0, units, 0)


def caches(dtype: torch.dtype, e4m3: bool, group: int, rows: list[tuple[int, int]]) -> tuple[Any, ...]:
    """Kernels, keys and values of all blocks, and tables of rows, whose blocks lie apart."""
    kernels = block_kernels(dtype, 16, WIDTH, group, e4m3)
    assert kernels is not None
    both = [torch.zeros(BLOCKS, KV_HEADS, 16, WIDTH, dtype=E4M3 if e4m3 else dtype) for _ in range(2)]
    every = slot_rows(torch.arange(16 * BLOCKS), KV_HEADS, 16)
    key, value = (random(16 * BLOCKS, KV_HEADS, WIDTH, dtype=dtype, seed=seed) for seed in (1, 2))
    kernels.store_kv(key, value, *both, every)
    longest = max(start + count for start, count in rows) // 16 + 1
    order = np.random.default_rng(3).permutation(BLOCKS)
    tables = np.stack([np.roll(order, 7 * row)[:longest] for row in range(len(rows))])
    return kernels, both, tables


def compare(
    dtype: torch.dtype,
    rows: list[tuple[int, int]],
    heads: int,
    window: int | None = None,
    e4m3: bool = False,
    threads: int = 1,
    scoring: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What compiled code and Python give."""
    from kernels.cpu.runtime.thread_pool import TEAM

    kernels, both, tables = caches(dtype, e4m3, heads // KV_HEADS, rows)
    starts, counts = (np.array(side) for side in zip(*rows, strict=True))
    query = random(int(counts.sum()), heads, WIDTH, dtype=dtype)
    before = TEAM.threads
    TEAM.set_threads(threads)
    plan = plan_blocks(kernels, starts, counts, tables, window, WIDTH, KV_HEADS)
    found = block_attention(query, *both, plan, 0.4, scoring)
    TEAM.set_threads(before)
    out = torch.full_like(found, torch.nan)
    stride = query.itemsize * heads * WIDTH
    places = query.data_ptr(), out.data_ptr(), tuple(both), plan.address, (stride, stride)
    record, units = attention_record(*places, heads, 0.4, scoring=scoring), int(plan.made[0]) * KV_HEADS
    in_python(kernels.attend, units, record)
    if len(plan.partials):
        in_python(kernels.combine, units, record)
    return found, out


def assert_same(found: torch.Tensor, out: torch.Tensor, exact: bool) -> None:
    assert found.isfinite().all()
    if exact:
        assert torch.equal(found, out)
    else:
        tolerance = 2**-7 if found.dtype == BF16 else 1e-5
        torch.testing.assert_close(found, out, rtol=tolerance, atol=tolerance / 4)


@pytest.mark.parametrize("e4m3", [False, True], ids=["whole", "e4m3"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("heads", [2, 10])
def test_rows_of_one_part(heads: int, dtype: torch.dtype, e4m3: bool):
    """A token, an odd number of positions, and a prompt in two items."""
    assert_same(*compare(dtype, [(0, 1), (22, 1), (3, 2)], heads, e4m3=e4m3), exact=dtype == BF16)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_a_window(dtype: torch.dtype):
    assert_same(*compare(dtype, [(38, 1), (30, 3)], 4, window=9), exact=dtype == BF16)


@pytest.mark.parametrize(("dtype", "threads"), [(BF16, 2), (F32, 1)], ids=["bfloat16", "float32"])
def test_a_row_of_two_parts(dtype: torch.dtype, threads: int):
    """One after the other, or split and combined."""
    assert_same(*compare(dtype, [(530, 1)], 2, threads=threads), exact=False)


@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_caps_and_sinks(soft_cap: float | None):
    sinks = torch.tensor([-1.0, 0.0, 2.0, 9.0])
    scoring = scoring_record(soft_cap, sinks)
    assert_same(*compare(F32, [(18, 1), (0, 2)], 4, scoring=scoring), exact=False)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_latents(dtype: torch.dtype):
    """Of three heads, whose values are a part of the keys."""
    heads, width, rank = 3, 32, 20
    kernels = latent_kernels(dtype, 16, width, heads)
    assert kernels is not None
    plane = torch.zeros(4, 1, 16, width, dtype=dtype)
    store_latents(kernels, random(64, width, dtype=dtype), plane, slot_rows(torch.arange(64), 1, 16))
    starts, counts = np.array([21, 0]), np.array([1, 3])
    plan = plan_blocks(kernels, starts, counts, np.array([[2, 0], [3, 1]]), None, width, 1)
    query = random(4, heads, width, dtype=dtype, seed=5)
    found = latent_attention(query, plane, plan, 0.3, rank)
    out, size = torch.full_like(found, torch.nan), query.itemsize * heads
    places = query.data_ptr(), out.data_ptr(), (plane, plane), plan.address, (size * width, size * rank)
    in_python(kernels.attend, int(plan.made[0]), attention_record(*places, heads, 0.3, value_dim=rank))
    assert_same(found, out, exact=dtype == BF16)


@pytest.mark.parametrize("e4m3", [False, True], ids=["whole", "e4m3"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_what_is_stored(dtype: torch.dtype, e4m3: bool):
    """Keys and values of some tokens, byte for byte."""
    from kernels.cpu.attention.records import StoreKVRecord

    kernels = block_kernels(dtype, 16, WIDTH, 1, e4m3)
    assert kernels is not None
    key, value = (random(5, KV_HEADS, WIDTH, dtype=dtype, seed=seed, scale=200) for seed in (1, 2))
    rows, results = slot_rows(torch.tensor([33, 2, 15, 16, 47]), KV_HEADS, 16), []
    for python in (False, True):
        both = [torch.zeros(3, KV_HEADS, 16, WIDTH, dtype=E4M3 if e4m3 else dtype) for _ in range(2)]
        if python:
            addresses = (each.data_ptr() for each in (key, value, *both, rows))
            names = ("key", "value", "key_cache", "value_cache", "slot_rows")
            record = StoreKVRecord(
                **dict(zip(names, addresses, strict=True)),
                stride=key.itemsize * key.stride(0),
                heads=KV_HEADS,
                head_dim=WIDTH,
            )
            kernels.store.reference(record, 0, 2, 0)
            kernels.store.reference(record, 2, 3, 0)
        else:
            kernels.store_kv(key, value, *both, rows)
        results.append([each.view(torch.uint8) for each in both])
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected) and found.any()
