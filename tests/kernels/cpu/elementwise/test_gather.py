"""Rows of an array by their indexes."""

import pytest
import torch

from kernels.cpu.elementwise.records import GatherRecord
from kernels.cpu_ops import CpuOps
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels


@pytest.mark.parametrize("size", [1, 15, 32, 33, 64, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_gathered(size: int, dtype: torch.dtype):
    """Of any size, some more than once; what lies beside them stays."""
    kernels, x = CpuOps(dtype), random(4, size, dtype=dtype)
    indexes, out = torch.tensor([3, 0, 3]), torch.full((5, size), 9, dtype=dtype)
    record = GatherRecord(
        x=x.data_ptr(), indexes=indexes.data_ptr(), out=out[1].data_ptr(), row_bytes=size * x.itemsize
    )
    kernels.team.run_one(kernels.rows.gather, 3, record, 1)
    assert torch.equal(out[1:4], x[indexes]) and (out[[0, 4]] == 9).all()
