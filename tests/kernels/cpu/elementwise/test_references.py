"""Operations on rows: compiled code gives what Python gives with the same function."""

import pytest
import torch

from kernels.cpu.elementwise.records import GatedActivationRecord, NormRecord, RotaryRecord
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
ROWS, WIDTH = 3, 48


@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(with_residual: bool):
    """Two heads of a row, which lies among others; bit for bit."""
    from kernels.cpu.elementwise.norms import rms_norm
    from kernels.cpu.runtime.thread_pool import TEAM

    x, residual = (random(ROWS, 3 * WIDTH, dtype=BF16, seed=seed) for seed in (1, 2))
    weight = random(WIDTH, dtype=BF16, seed=3)
    results = []
    for python in (False, True):
        normed, total = torch.zeros_like(x), torch.zeros_like(x)
        record = NormRecord(
            x=x.data_ptr(),
            residual=residual.data_ptr() if with_residual else 0,
            weight=weight.data_ptr(),
            normed=normed.data_ptr(),
            total=total.data_ptr() if with_residual else x.data_ptr(),
            width=WIDTH,
            eps=1e-5,
            weight_offset=1.0,
            factor=0.25,
            heads=2,
            stride=2 * 3 * WIDTH,
        )
        if python:
            rms_norm.bfloat16.reference(record, 0, ROWS, 0)
        else:
            TEAM.run_one(rms_norm.bfloat16, ROWS, record, 1)
        results.append((normed, total))
    (normed, total), (expected, expected_total) = results
    assert torch.equal(normed, expected) and torch.equal(total, expected_total)
    assert normed[:, : 2 * WIDTH].all() and not normed[:, 2 * WIDTH :].any()


def test_rotary():
    """Rows of the tables by an index; bit for bit."""
    from kernels.cpu.elementwise.rotary import rotary
    from kernels.cpu.runtime.thread_pool import TEAM

    x, cos, sin = (
        random(ROWS, 2, 64, dtype=BF16),
        random(9, 64, dtype=F32, seed=1),
        random(9, 64, dtype=F32, seed=2),
    )
    index = torch.tensor([8, 0, 5])
    results = torch.zeros(2, ROWS, 2, 64, dtype=BF16)
    for out in results:
        record = RotaryRecord(
            x=x.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            index=index.data_ptr(),
            stride=2 * 2 * 64,
            heads=2,
            head_dim=64,
            out=out.data_ptr(),
        )
        if out.data_ptr() == results.data_ptr():
            TEAM.run_one(rotary.bfloat16, ROWS, record, 1)
        else:
            rotary.bfloat16.reference(record, 0, ROWS, 0)
    assert torch.equal(results[0], results[1]) and results.all()


def test_gated_silu():
    """But for the reciprocal, which is exact to 2 ** -14 in compiled code."""
    from kernels.cpu.elementwise.activations import gated_silu
    from kernels.cpu.runtime.thread_pool import TEAM

    gate_up = random(ROWS, 2 * WIDTH, dtype=BF16, scale=20)
    results = torch.zeros(2, ROWS, WIDTH, dtype=BF16)
    records = [
        GatedActivationRecord(gate_up=gate_up.data_ptr(), out=out.data_ptr(), width=WIDTH, factor=0.7)
        for out in results
    ]
    TEAM.run_one(gated_silu.bfloat16, ROWS, records[0], 1)
    gated_silu.bfloat16.reference(records[1], 0, ROWS, 0)
    torch.testing.assert_close(results[0].float(), results[1].float(), rtol=2**-7, atol=1e-30)
