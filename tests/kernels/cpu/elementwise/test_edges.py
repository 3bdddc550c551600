"""The row kernels where rows end within a vector: every width around one and two vectors, in both dtypes,
against float64; and no value beside a result is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    AdjustLogitsRecord,
    ClampedSwigluRecord,
    GatedActivationRecord,
    LayerNormRecord,
    NormRecord,
    RotaryRecord,
    ScaledAddRecord,
)
from kernels.cpu_ops import ACTIVATIONS, CpuOps
from kernels.ops.layers.activation import clamped_swiglu as clamped_swiglu_reference
from kernels.ops.layers.norms import adjust_logits, rms_norm_reference
from tests.kernels.references.layers import (
    activation_reference,
    gated_activation_reference,
    layer_norm_reference,
    rotary_reference,
)
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16, F32 = torch.bfloat16, torch.float32
WIDTHS = [1, 2, 7, 15, 16, 17, 30, 31, 32, 33, 47, 48, 49]
ROWS, BESIDE = 3, 7.0
TOLERANCES = {BF16: 2**-8 + 3e-4, F32: 4e-6}


@pytest.fixture(params=TOLERANCES, ids=["bfloat16", "float32"], scope="module")
def kernels(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(request.param)


Case = tuple[Operation[Any], Any, torch.Tensor]
"""An operation, its record, and what it is to write, [ROWS, width] float64."""


def rms_norm(kernels: CpuOps, out: torch.Tensor) -> Case:
    width, dtype = out.shape[1], out.dtype
    x, weight = random(ROWS, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    record = NormRecord(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        normed=out.data_ptr(),
        total=x.data_ptr(),
        width=width,
        eps=1e-5,
        weight_offset=1.0,
        factor=1.0,
        heads=1,
        stride=width * x.itemsize,
    )
    record.tensors = x, weight
    return kernels.rows.norm, record, rms_norm_reference(x.double(), weight.double(), 1e-5, 1.0)


def sum_of_a_norm(kernels: CpuOps, out: torch.Tensor) -> Case:
    """The sum that add_rms_norm writes beside what is normed."""
    width, dtype = out.shape[1], out.dtype
    x, residual = random(ROWS, width, dtype=dtype), random(ROWS, width, dtype=dtype, seed=1)
    weight, normed = torch.ones(width, dtype=dtype), torch.empty_like(x)
    record = NormRecord(
        x=x.data_ptr(),
        residual=residual.data_ptr(),
        weight=weight.data_ptr(),
        normed=normed.data_ptr(),
        total=out.data_ptr(),
        width=width,
        eps=1e-5,
        factor=0.3,
        heads=1,
        stride=width * x.itemsize,
    )
    record.tensors = x, residual, weight, normed
    return kernels.rows.norm, record, x.double() * 0.3 + residual.double()


def layer_norm(kernels: CpuOps, out: torch.Tensor) -> Case:
    width, dtype = out.shape[1], out.dtype
    x, (weight, bias) = random(ROWS, width, dtype=dtype), random(2, width, dtype=dtype, seed=1)
    record = LayerNormRecord(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        bias=bias.data_ptr(),
        normed=out.data_ptr(),
        total=x.data_ptr(),
        width=width,
        eps=1e-5,
    )
    record.tensors = x, weight, bias
    return kernels.rows.layer, record, layer_norm_reference(x.double(), weight.double(), bias.double(), 1e-5)


def gated(attribute: str, name: str, **fields: float) -> Callable[[CpuOps, torch.Tensor], Case]:
    def case(kernels: CpuOps, out: torch.Tensor) -> Case:
        width = out.shape[1]
        gate_up = random(ROWS, 2 * width, dtype=out.dtype, scale=3)
        record = GatedActivationRecord(gate_up=gate_up.data_ptr(), out=out.data_ptr(), width=width, **fields)
        record.tensors = gate_up
        return getattr(kernels.rows, attribute), record, gated_activation_reference(gate_up.double(), name)

    return case


def clamped(kernels: CpuOps, out: torch.Tensor) -> Case:
    gate_up = random(ROWS, 2 * out.shape[1], dtype=out.dtype, scale=3)
    fields = {"gate_up": gate_up.data_ptr(), "out": out.data_ptr(), "width": out.shape[1]}
    record = ClampedSwigluRecord(**fields, alpha=1.5, limit=2.0)
    record.tensors = gate_up
    return kernels.rows.swiglu, record, clamped_swiglu_reference(gate_up.double(), 1.5, 2.0)


def activation(name: str) -> Callable[[CpuOps, torch.Tensor], Case]:
    def case(kernels: CpuOps, out: torch.Tensor) -> Case:
        x = random(ROWS, out.shape[1], dtype=out.dtype, scale=3)
        linear, cubic = ACTIVATIONS[name]
        sizes = {"width": out.shape[1], "linear": linear, "cubic": cubic}
        record = ActivationRecord(x=x.data_ptr(), out=out.data_ptr(), **sizes)
        record.tensors = x
        return kernels.rows.activate, record, activation_reference(x.double(), name)

    return case


def scaled_add(with_y: bool) -> Callable[[CpuOps, torch.Tensor], Case]:
    def case(kernels: CpuOps, out: torch.Tensor) -> Case:
        x, y = (random(ROWS, out.shape[1], dtype=out.dtype, seed=seed) for seed in (0, 1))
        addresses = {"x": x.data_ptr(), "y": y.data_ptr() if with_y else 0, "out": out.data_ptr()}
        record = ScaledAddRecord(**addresses, width=out.shape[1], factor=0.3)
        record.tensors = x, y
        return kernels.rows.add, record, x.double() * 0.3 + (y.double() if with_y else 0)

    return case


def rotary(kernels: CpuOps, out: torch.Tensor) -> Case:
    """A head of each row, of twice the width's half."""
    width = out.shape[1]
    x, angles = random(ROWS, 1, width, dtype=out.dtype), random(ROWS, width // 2, dtype=F32, scale=9)
    cos, sin = torch.cat((angles.cos(),) * 2, 1), torch.cat((-angles.sin(), angles.sin()), 1)
    record = RotaryRecord(
        x=x.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        stride=width * x.itemsize,
        heads=1,
        head_dim=width,
        out=out.data_ptr(),
    )
    record.tensors = x, cos, sin
    return kernels.rows.rotary, record, rotary_reference(x.double(), cos.double(), sin.double())[:, 0]


CASES: dict[str, Callable[[CpuOps, torch.Tensor], Case]] = {
    "rms_norm": rms_norm,
    "sum of a norm": sum_of_a_norm,
    "layer_norm": layer_norm,
    "gated silu": gated("silu", "silu", factor=1.0),
    "gated gelu": gated("gelu", "gelu_new"),
    "gated gelu, exact": gated("gelu", "gelu", exact=1),
    "clamped": clamped,
    **{name: activation(name) for name in ACTIVATIONS},
    "scaled add": scaled_add(True),
    "scaled": scaled_add(False),
    "rotary": rotary,
}


@pytest.mark.parametrize("name", CASES)
def test_rows_that_end_within_a_vector(name: str, kernels: CpuOps):
    """Each alone on its thread too: the rows before and behind those that are computed stay."""
    for width in WIDTHS:
        width += width % 2 if name == "rotary" else 0
        memory = torch.full((ROWS + 2, width), BESIDE, dtype=kernels.dtype)
        operation, record, exact = CASES[name](kernels, memory[1:])
        kernels.team.run_one(operation, ROWS, record, 1)
        tolerance = TOLERANCES[kernels.dtype]
        torch.testing.assert_close(memory[1:-1].double(), exact, rtol=tolerance, atol=tolerance)
        assert (memory[[0, -1]] == BESIDE).all(), width


@pytest.mark.parametrize("name", CASES)
def test_some_of_the_rows_in_python(name: str, kernels: CpuOps):
    """A row in the middle, as a thread takes it: its neighbours are not written."""
    for width in (2, 18, 32):
        memory = torch.full((ROWS, width), BESIDE, dtype=kernels.dtype)
        operation, record, exact = CASES[name](kernels, memory)
        operation.reference(record, 1, 1, 0)
        tolerance = TOLERANCES[kernels.dtype]
        torch.testing.assert_close(memory[1].double(), exact[1], rtol=tolerance, atol=tolerance)
        assert (memory[[0, 2]] == BESIDE).all()


@pytest.mark.parametrize("width", [16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_logits(width: int, cap: float | None, kernels: CpuOps):
    """Rows of at least a vector: what is computed twice lies within the row."""
    logits, memory = random(ROWS, width, dtype=F32, scale=5), torch.full((ROWS + 2, width), BESIDE)
    record = AdjustLogitsRecord(
        x=logits.data_ptr(), out=memory[1:].data_ptr(), width=width, scale=0.7, cap=cap or 0.0
    )
    kernels.team.run_one(kernels.rows.logits, ROWS, record, 1)
    exact = adjust_logits(logits.double(), 0.7, cap)
    torch.testing.assert_close(memory[1:-1].double(), exact, rtol=2e-6, atol=2e-6)
    assert (memory[[0, -1]] == BESIDE).all()


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_heads_of_a_row(count: int, kernels: CpuOps):
    """Normed and rotated head by head, beside values of the row that stay."""
    width = 34
    rows = random(ROWS, (count + 1) * width, dtype=kernels.dtype)
    weight, before = random(width, dtype=kernels.dtype, seed=1), rows.clone()
    record = NormRecord(
        x=rows.data_ptr(),
        weight=weight.data_ptr(),
        normed=rows.data_ptr(),
        total=rows.data_ptr(),
        width=width,
        eps=1e-5,
        factor=1.0,
        heads=count,
        stride=(count + 1) * width * rows.itemsize,
    )
    kernels.team.run_one(kernels.rows.norm, ROWS, record, 1)
    heads = before[:, : count * width].double().view(ROWS, count, width)
    exact = rms_norm_reference(heads, weight.double(), 1e-5).flatten(1)
    tolerance = TOLERANCES[kernels.dtype]
    torch.testing.assert_close(rows[:, : count * width].double(), exact, rtol=tolerance, atol=tolerance)
    assert torch.equal(rows[:, count * width :], before[:, count * width :])


@pytest.mark.parametrize("place", [0, 15, 16, 32])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_broken_stays_in_its_row(place: int, value: float, kernels: CpuOps):
    """In each part of a row: norms of it are broken, and no neighbour's."""
    x, weight = random(ROWS, 33, dtype=kernels.dtype), torch.ones(33, dtype=kernels.dtype)
    expected, bias = kernels.rms_norm(x, weight, 1e-5), torch.zeros(33, dtype=kernels.dtype)
    centered = kernels.layer_norm(x, weight, bias, 1e-5)
    x[1, place] = value
    normed = kernels.rms_norm(x, weight, 1e-5)
    assert not normed[1, place].isfinite()
    assert torch.equal(normed[[0, 2]], expected[[0, 2]])
    normed = kernels.layer_norm(x, weight, bias, 1e-5)
    assert normed[1].isnan().all() and torch.equal(normed[[0, 2]], centered[[0, 2]])
