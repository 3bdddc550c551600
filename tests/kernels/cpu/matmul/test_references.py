"""Products: compiled code gives what Python gives with the same function, bit for bit."""

import pytest
import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.matmul.records import LinearRecord
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

WORDS, COLUMNS = 5, 70
STRIPS = 6  # of two blocks


def results(
    linear: Operation[LinearRecord], rows: int, dtype: torch.dtype, fields: dict[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, COLUMNS] of compiled code and of Python."""
    from kernels.cpu.matmul.gemm import scratch_bytes
    from kernels.cpu.runtime.thread_pool import TEAM

    both = torch.zeros(2, rows, COLUMNS, dtype=dtype)
    scratch = TEAM.scratch(scratch_bytes(WORDS))
    for out in both:
        record = LinearRecord(
            out=out.data_ptr(),
            columns=COLUMNS,
            words=WORDS,
            out_bytes=dtype.itemsize,
            scratch=scratch,
            rows=rows,
            **fields,
        )
        if out.data_ptr() == both.data_ptr():
            TEAM.run_one(linear, rows, record, 0)
        else:
            linear.reference(record, 0, (COLUMNS + 15) // 16, 0)
    return both[0], both[1]


@pytest.mark.parametrize("rows", [1, 3, 8, 11, 29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pairs_of_bfloat16(rows: int, dtype: torch.dtype):
    from kernels.cpu.matmul.gemm_bfloat16 import linear_bfloat16

    x = random(rows, 2 * WORDS, dtype=torch.bfloat16)
    weight = random(2, WORDS, 48, 2, dtype=torch.bfloat16, seed=1)
    bias = random(STRIPS * 16, dtype=torch.float32, seed=2)
    fields = {"x": x.data_ptr(), "weight": weight.data_ptr(), "params": bias.data_ptr()}
    compiled, python = results(linear_bfloat16, rows, dtype, fields)
    assert torch.equal(compiled, python) and compiled.all()


@pytest.mark.parametrize("rows", [1, 3, 8, 11, 29])
@pytest.mark.parametrize("keeps_sums", [False, True])
def test_integers(rows: int, keeps_sums: bool):
    """Scaled, and as the sums that ranks add."""
    from kernels.cpu.matmul.gemm_int8 import linear_int8
    from kernels.cpu.matmul.gemm_int8_sums import linear_int8_sums

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (rows, 4 * WORDS), generator=generator, dtype=torch.uint8)
    weight = torch.randint(-127, 128, (2, WORDS, 48, 4), generator=generator).to(torch.int8)
    params = random(STRIPS, 3, 16, dtype=torch.float32, seed=1)
    params[:, 2] = torch.randint(-9999, 9999, (STRIPS, 16), generator=generator).int().view(torch.float32)
    scales = random(rows, dtype=torch.float32, seed=2)
    fields = {"x": x.data_ptr(), "weight": weight.data_ptr(), "params": params.data_ptr()}
    operation = linear_int8_sums if keeps_sums else linear_int8
    compiled, python = results(operation, rows, torch.float32, fields | {"scales": scales.data_ptr()})
    assert torch.equal(compiled.view(torch.int32), python.view(torch.int32)) and compiled.all()


def test_rows_are_quantized():
    """Of zeros, of values, and with a NaN, whose scale is one; then rows of a weight of integers."""
    from kernels.cpu.matmul.gemm_int8 import quantize_rows, quantized_rows
    from kernels.cpu.matmul.records import QuantizedRowsRecord, QuantizeRecord
    from kernels.cpu.runtime.thread_pool import TEAM

    x = random(3, 48, dtype=torch.bfloat16)
    x[0], x[2, 7] = 0, torch.nan
    weight, params = torch.arange(12 * 48, dtype=torch.int32) * 7654321, random(3, 3, 16, dtype=torch.float32)
    indexes, results = torch.tensor([47, 0, 17]), []
    for python in (False, True):
        out, scales = torch.zeros(3, 48, dtype=torch.uint8), torch.zeros(3)
        rows = torch.zeros(3, 48, dtype=torch.bfloat16)
        record = QuantizeRecord(x=x.data_ptr(), out=out.data_ptr(), scales=scales.data_ptr(), width=48)
        of_weight = QuantizedRowsRecord(
            indexes=indexes.data_ptr(),
            weight=weight.data_ptr(),
            params=params.data_ptr(),
            out=rows.data_ptr(),
        )
        of_weight.words, of_weight.width = 12, 48
        if python:
            quantize_rows.reference(record, 0, 3, 0)
            quantized_rows.reference(of_weight, 0, 3, 0)
        else:
            TEAM.run_one(quantize_rows, 3, record, 1)
            TEAM.run_one(quantized_rows, 3, of_weight, 1)
        results.append((out[:2], scales, rows))
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(), expected.nan_to_num()) and got.any()
    assert results[0][1].isnan().tolist() == [False, False, True]
