"""Heads that are copied from one layout to another: every byte where it belongs, by compiled code and by
Python, and no other byte."""

import pytest
import torch

from kernels.cpu.attention.records import CopyHeadsRecord

pytestmark = pytest.mark.cpu_kernels


def record(x: torch.Tensor, out: torch.Tensor) -> CopyHeadsRecord:
    """x, out: [T, H, D] of any strides of tokens and heads, where values are neighbours."""
    size = x.itemsize
    return CopyHeadsRecord(
        x=x.data_ptr(),
        out=out.data_ptr(),
        heads=x.shape[1],
        head_bytes=size * x.shape[2],
        x_stride=size * x.stride(0),
        x_pitch=size * x.stride(1),
        out_stride=size * out.stride(0),
        out_pitch=size * out.stride(1),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [2, 16, 30, 32, 34, 64, 100, 200])
@pytest.mark.parametrize(("tokens", "heads"), [(0, 2), (1, 1), (5, 3)])
def test_heads_change_their_places(tokens: int, heads: int, width: int, dtype: torch.dtype, threads: int):
    """From tokens to heads and back, with rows that are longer than what is copied."""
    from kernels.cpu.attention.latent.operations import copy_heads
    from kernels.cpu.runtime.thread_pool import TEAM

    x = torch.randn(tokens, heads, width + 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    by_head, back = torch.full((heads, tokens, width + 2), 7.0, dtype=dtype), torch.full_like(x, 7.0)
    first = record(x[:, :, :width], by_head.transpose(0, 1)[:, :, :width])
    TEAM.run_one(copy_heads, tokens, first, 1)
    assert torch.equal(by_head[:, :, :width].transpose(0, 1), x[:, :, :width])
    assert (by_head[:, :, width:] == 7).all()
    second = record(by_head.transpose(0, 1)[:, :, :width], back[:, :, :width])
    copy_heads.reference(second, 0, tokens, 0)
    assert torch.equal(back[:, :, :width], x[:, :, :width]) and (back[:, :, width:] == 7).all()
