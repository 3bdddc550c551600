"""Weights of few bits: what they take, and what rounding to them loses."""

import pytest
import torch

from kernels.triton.matmul.low_bit_weight import (
    DOUBLED,
    Code,
    LowBitWeight,
    round_to_int4,
    round_to_int8,
)
from tests.kernels.tolerances import random


def test_bytes():
    """Of 4096 x 4096: 4.5 bits a value with groups of 64, 8 with a scale per row."""
    values = 4096 * 4096
    meta = torch.device("meta")
    assert LowBitWeight.empty((4096, 4096), Code.INT4, 64, meta).nbytes == values * 9 // 16
    assert LowBitWeight.empty((4096, 4096), Code.INT8, 4096, meta).nbytes == values + 4096 * 4
    weight = LowBitWeight.empty((70, 100), Code.E4M3, 100, torch.device("cpu"))
    assert weight.group_size == 128 and weight.params.shape == (2, 1, 64)


def test_rounding_to_8_bits():
    """Half a step at most; a row of zeros stays one."""
    weight = random(5, 300, dtype=torch.float32)
    weight[3] = 0
    integers, scales = round_to_int8(weight)
    assert integers.abs().amax(-1).tolist() == [127, 127, 127, 0, 127]
    assert ((integers * scales - weight).abs() <= 0.5001 * scales).all()


def test_rounding_to_4_bits():
    """Better than whole ranges, and held as it is; a group of zeros stays one; the last group is padded."""
    weight = random(70, 200, dtype=torch.bfloat16)
    weight[2, 32:64] = 0
    integers, scales, zeros = round_to_int4(weight, 32)
    assert integers.shape == (70, 224) and scales.shape == zeros.shape == (70, 7)
    held = LowBitWeight.empty((70, 200), Code.INT4, 32, torch.device("cpu"))
    held.put(torch.arange(70), integers, scales, zeros)
    values = held.values()
    assert torch.equal(values[2, 32:64], torch.zeros(32))
    groups = weight.float()[:, :192].view(70, 6, 32)
    step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)).clamp(min=1e-9) / 15
    least = (-groups.amin(-1, keepdim=True) / step).round()
    whole = (((groups / step).round() + least).clamp(0, 15) - least) * step
    found = (values[:, :192].view(70, 6, 32) - groups).square().sum()
    assert found < 0.95 * (whole - groups).square().sum()


CPU = torch.device("cpu")
ROWS, INPUTS, GROUP = 70, 100, 64
"""Neither fills its tiles; the second group has 36 inputs."""


def parts_of(code: Code) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes [ROWS, INPUTS] as put() takes them, scales [ROWS, 2] of 24 bits, and zero points."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 16 if code.is_half else 256, (ROWS, INPUTS), generator=generator).to(torch.uint8)
    scales = (torch.rand(ROWS, 2, generator=generator) + 0.1).bfloat16().float()
    if code is Code.INT4:
        return bits, scales, torch.randint(0, 256, (ROWS, 2), generator=generator).to(torch.int16)
    if code is Code.E4M3:
        bits[bits & 127 == 127] = 0  # NaN
    return bits if code.is_half else bits.view(KINDS[code]), scales, None


KINDS = {Code.INT8: torch.int8, Code.E4M3: torch.float8_e4m3fn}


def held_weight(code: Code, order: torch.Tensor | None = None) -> LowBitWeight:
    """The weight of parts_of(), whose rows are put in two parts: the odd ones, and then the others."""
    codes, scales, zeros = parts_of(code)
    held = LowBitWeight.empty((ROWS, INPUTS), code, GROUP, CPU, order)
    for first in (1, 0):
        rows = torch.arange(first, ROWS, 2).flip(0)
        held.put(rows, codes[rows], scales[rows], None if zeros is None else zeros[rows])
    return held


@pytest.mark.parametrize("code", list(Code))
def test_a_code_lies_where_the_formula_says(code: Code):
    """And a scale, with its zero point; what pads rows, inputs and groups is zero."""
    held, (codes, scales, zeros) = held_weight(code), parts_of(code)
    assert held.codes.shape == (2, 2, 64, 32 if code.is_half else 64) and held.params.shape == (2, 2, 64)
    raw = codes.view(torch.uint8).tolist()
    for n in range(128):
        for k in range(128):
            byte = held.codes[n // 64, k // 64, n % 64, k % held.codes.shape[3]].item()
            found = byte >> k % 64 // 32 * 4 & 15 if code.is_half else byte
            assert found == (raw[n][k] if n < ROWS and k < INPUTS else 0), (n, k)
        for group in range(2):
            bits = held.params[n // 64, group, n % 64]
            if n >= ROWS:
                assert bits == 0
            else:
                assert (bits & 255).item() == (0 if zeros is None else zeros[n, group].item())
                assert (bits & -256).view(torch.float32) == scales[n, group]


@pytest.mark.parametrize("code", list(Code))
def test_values_are_those_of_the_formula(code: Code):
    """(p - z) * s, of which p is twice the value of a float of 4 bits; in the inputs' own order."""
    codes, scales, zeros = parts_of(code)
    numbers = DOUBLED[codes.long()] if code is Code.E2M1 else codes
    group = torch.arange(INPUTS) // GROUP
    taken = 0 if zeros is None else zeros[:, group]
    expected = (numbers.float() - taken) * scales[:, group]
    assert torch.equal(held_weight(code).values(), expected)
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(1))
    ordered = held_weight(code, order).values()
    assert torch.equal(ordered[:, order], expected) and not torch.equal(ordered, expected)


def test_twice_the_floats_of_4_bits():
    """A sign, two bits of an exponent and one of a fraction: without one where the exponent is 0."""
    for code in range(16):
        sign, exponent, fraction = -1 if code & 8 else 1, code >> 1 & 3, code & 1
        value = fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
        assert DOUBLED[code] == sign * 2 * value


@pytest.mark.parametrize("code", list(Code))
def test_the_weight_of_an_expert_shares_the_memory_of_all(code: Code):
    """Each is padded to whole tiles; rows are counted without what pads them."""
    codes, scales, zeros = parts_of(code)
    held = LowBitWeight.empty((3, ROWS, INPUTS), code, GROUP, CPU)
    assert held.experts == 3 and len(held.codes) == len(held.params) == 3 * 2
    for expert in (2, 1):
        held.put(expert * ROWS + torch.arange(ROWS), codes, scales, zeros)
    part, alone = held.expert(1), held_weight(code)
    assert part.out_features == ROWS and torch.equal(part.values(), alone.values())
    assert torch.equal(held.values(), torch.stack((0 * part.values(), part.values(), part.values())))
    assert torch.equal(part.codes, alone.codes) and torch.equal(part.params, alone.params)
    part.codes.zero_()
    assert not held.expert(1).codes.any() and torch.equal(held.expert(2).codes, alone.codes)


def test_nothing_is_put_where_there_are_no_rows():
    held = held_weight(Code.INT4)
    before = held.values()
    none = torch.zeros(0, dtype=torch.int64)
    held.put(none, none.view(0, 1), none.view(0, 1), none.view(0, 1))
    assert torch.equal(held.values(), before)


def test_parts_that_are_wider_than_the_weight():
    """Codes and scales of whole groups, of which the last one lies behind the weight."""
    codes, scales, _ = parts_of(Code.INT8)
    held = LowBitWeight.empty((ROWS, INPUTS), Code.INT8, GROUP, CPU)
    behind = torch.full((ROWS, 92), 9, dtype=torch.int8)
    more = torch.full((ROWS, 1), 9.0)
    held.put(torch.arange(ROWS), torch.cat((codes, behind), 1), torch.cat((scales, more), 1))
    assert torch.equal(held.values(), held_weight(Code.INT8).values())


@pytest.mark.parametrize(
    ("scale", "zero"), [(1 + 2.0**-20, 8), (1.0, -1), (1.0, 256)], ids=["too fine", "below", "above"]
)
def test_parameters_that_4_bits_cannot_hold(scale: float, zero: int):
    held = LowBitWeight.empty((1, 32), Code.INT4, 32, CPU)
    codes, row = torch.zeros(1, 32, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(AssertionError):
        held.put(row, codes, torch.full((1, 1), scale), torch.full((1, 1), zero))


def test_sizes_of_groups():
    """Multiples of what a code asks for, or the whole row; 4 bits ask for half as much as 8."""
    assert [code.least_group for code in Code] == [32, 32, 64, 64]
    assert [code.most_rows for code in Code] == [128, 64, 128, 64]
    for code in Code:
        assert LowBitWeight.empty((1, 200), code, code.least_group, CPU).group_size == code.least_group
        with pytest.raises(AssertionError):
            LowBitWeight.empty((1, 200), code, code.least_group + 1, CPU)
        whole = LowBitWeight.empty((1, 200), code, 200, CPU)
        assert whole.group_size >= 200 and whole.group_size * whole.params.shape[1] >= 256
    assert LowBitWeight.empty((1, 100), Code.INT4, 4096, CPU).group_size == 128, "that of the padded row"


def test_bytes_of_an_order():
    order = torch.arange(INPUTS)
    plain, ordered = held_weight(Code.INT8), held_weight(Code.INT8, order)
    assert ordered.nbytes == plain.nbytes + 8 * INPUTS == 2 * 2 * 64 * 64 + 2 * 2 * 64 * 4 + 8 * INPUTS


def test_rows_that_pad_an_expert():
    shapes = [(3, rows, 32) for rows in (1, 63, 64, 65, 128)]
    assert [len(LowBitWeight.empty(shape, Code.INT4, 32, CPU).codes) for shape in shapes] == [3, 3, 3, 6, 6]


def test_halves_are_rounded_to_even():
    """Of 8 bits; and a row whose largest value is nearly nothing has no inverse."""
    integers, scales = round_to_int8(torch.tensor([[127.0, 2.5, 3.5, -0.5], [1e-31, 0.0, 0.0, -1e-31]]))
    assert integers.tolist() == [[127, 2, 4, 0], [0, 0, 0, 0]] and scales[0] == 1


@pytest.mark.parametrize("width", [1, 31, 32, 33])
def test_rounding_to_4_bits_beside_zero(width: int):
    """Values of one sign, whose range begins at 0; whole numbers of a range are exact."""
    weight = torch.arange(width).float().remainder(16)[None]
    for sign in (1, -1):
        integers, scales, zeros = round_to_int4(sign * weight, 32)
        assert integers.shape == (1, -(-width // 32) * 32) and scales.shape == (1, -(-width // 32))
        values = (integers.float().view(1, -1, 32) - zeros[..., None]) * scales[..., None]
        error = (values.flatten(1)[:, :width] - sign * weight).abs().amax()
        assert error <= 2.0**-15 * 16 and int(integers.max()) <= 15
        assert int(zeros.min()) >= 0 and int(zeros.max()) <= 15
        assert not (scales.view(torch.int32) & 255).any()
