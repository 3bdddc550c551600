"""Attention of segments by the compiled kernels, against dense attention in float64."""

from collections.abc import Iterator

import pytest
import torch

from kernels.cpu.attention.segments import KEPT, SegmentPlans
from kernels.cpu.runtime.thread_pool import TEAM
from kernels.cpu_ops import CpuOps
from kernels.torch_ops import Ops
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCES = {BF16: (1.6e-2, 1.6e-2), F32: (1e-5, 1e-5)}
"""As of block_attention."""
LENGTHS = {"one token": (1,), "one segment": (37,), "windows": (16, 5, 1, 30), "parts": (530, 3)}
HEADS = 3


@pytest.fixture
def team() -> Iterator[None]:
    before = TEAM.threads
    yield
    TEAM.set_threads(before)


def make(count: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Returns queries, keys and values, side by side as a projection leaves them."""
    qkv = torch.randn(count, 3 * HEADS, head_dim, generator=torch.Generator().manual_seed(count)).to(dtype)
    return qkv.split_with_sizes((HEADS,) * 3, dim=1)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [6, 64, 72])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_as_dense_attention(lengths: tuple[int, ...], head_dim: int, dtype: torch.dtype):
    parts, scale = make(sum(lengths), head_dim, dtype), head_dim**-0.5
    found = CpuOps(dtype).full_attention(*parts, scale, lengths)
    assert found.is_contiguous() and found.dtype == dtype
    query, key, value = (each.double() for each in parts)
    expected = Ops().full_attention(query, key, value, scale, lengths)
    assert_close(found, expected, *TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bfloat16", "float32"])
def test_bits_depend_on_the_segment_alone(dtype: torch.dtype, team: None):
    """Beside others, on any number of threads, in any layout, with anything in memory that is used again."""
    ops, lengths, scale = CpuOps(dtype), (29, 530, 8), 0.25
    parts = make(sum(lengths), 32, dtype)
    alone = [
        ops.full_attention(*each, scale)
        for each in zip(*(torch.split(part, list(lengths)) for part in parts), strict=True)
    ]
    for threads in (1, 2, 3):
        TEAM.set_threads(threads)
        assert torch.equal(ops.full_attention(*parts, scale, lengths), torch.cat(alone))
    query, key, value = parts
    found = ops.full_attention(query.contiguous(), key.contiguous(), value, scale, lengths)
    assert torch.equal(found, torch.cat(alone))


def test_memory_that_no_token_fills_is_not_read(monkeypatch: pytest.MonkeyPatch):
    parts = make(21, 32, F32)
    expected = CpuOps(F32).full_attention(*parts, 0.25)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda _, size: torch.full(size, torch.nan))
    assert torch.equal(CpuOps(F32).full_attention(*parts, 0.25), expected)


def test_heads_that_the_kernels_do_not_take_go_to_torch():
    parts = make(9, 5, BF16)
    assert SegmentPlans(BF16, TEAM).find((9,), HEADS, 5) is None
    assert torch.equal(CpuOps(BF16).full_attention(*parts, 0.5), Ops().full_attention(*parts, 0.5))


def test_plans_are_shared_by_layers_and_few_are_kept(team: None):
    plans, sizes = SegmentPlans(F32, TEAM), (HEADS, 32)
    first, second = plans.find((3,), *sizes), plans.find((3, 4), *sizes)
    assert plans.find((3,), *sizes) is first and plans.find((3, 4), *sizes) is second
    third = plans.find((5,), *sizes)
    assert len(plans._plans) == KEPT and plans.find((3,), *sizes) is not first
    TEAM.set_threads(TEAM.threads + 1)
    assert plans.find((5,), *sizes) is not third
