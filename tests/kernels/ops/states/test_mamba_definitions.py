"""The references of Mamba-2 layers against their formulas in float64, a number at a time."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.ops.layers.norms import grouped_norm
from kernels.ops.states.selective_scan import MambaShape, ScanRates, selective_scan
from kernels.ops.states.spans import Spans
from kernels.ops.states.update_log import update_width
from tests.kernels.tolerances import TOLERANCES, assert_close, random

F32 = torch.float32
Numbers = npt.NDArray[np.float64]
SHAPES = [MambaShape(1, 1, 1, 1), MambaShape(4, 3, 2, 5), MambaShape(3, 2, 3, 1)]


def spans(*rows: tuple[int, int, int]) -> Spans:
    """(row, position of its first token, tokens)."""
    made = Spans.empty(len(rows))
    made.write(*(np.array(column) for column in zip(*rows, strict=True)))
    return made


def wide(x: torch.Tensor) -> Numbers:
    return x.double().numpy()


def inputs(shape: MambaShape, tokens: int) -> tuple[torch.Tensor, torch.Tensor, ScanRates]:
    rates = ScanRates.of(*(random(shape.heads, dtype=F32, seed=seed).abs() for seed in (1, 2, 3)), 0.7)
    return random(tokens, shape.channels, dtype=F32), random(tokens, shape.heads, dtype=F32, seed=5), rates


def token(
    shape: MambaShape, numbers: Numbers, steps: Numbers, rates: ScanRates, states: Numbers
) -> list[list[float]]:
    """Outputs of all heads, in the formula's own terms. states: [H, N, P], which change."""
    outputs, n, p = [], shape.state_size, shape.head_dim
    for head in range(shape.heads):
        group = head * shape.groups // shape.heads
        b_at = shape.values + group * n
        c_at = b_at + shape.groups * n
        x = numbers[head * p : (head + 1) * p]
        d = math.log1p(math.exp(0.7 * steps[head] + rates.bias[head].item()))
        kept = math.exp(-rates.decay[head].item() * d)
        out = [rates.skip[head].item() * x[j] for j in range(p)]
        for i in range(n):
            for j in range(p):
                states[head, i, j] = kept * states[head, i, j] + numbers[b_at + i] * d * x[j]
                out[j] += numbers[c_at + i] * states[head, i, j]
        outputs.append(out)
    return outputs


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_selective_scan(shape: MambaShape):
    """Heads of a group share b and c; a row that begins has no state, and others' states stay."""
    (mixed, steps, rates), state = (
        inputs(shape, 5),
        random(3, shape.heads, shape.state_size, shape.head_dim, dtype=F32),
    )
    states, before = {1: wide(state[1]).copy(), 0: np.zeros(state[0].shape)}, state.clone()
    out = selective_scan(mixed, steps, rates, state, shape, spans((1, 4, 3), (0, 0, 2)))
    for t, row in enumerate((1, 1, 1, 0, 0)):
        expected = token(shape, wide(mixed[t]), wide(steps[t]), rates, states[row])
        found = out[t].view(shape.heads, shape.head_dim)
        assert np.abs(wide(found) - np.array(expected)).max() < 1e-5
    for row, expected_state in states.items():
        assert np.abs(wide(state[row]) - expected_state).max() < 1e-5
    assert torch.equal(state[2], before[2])


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_drafted_tokens_leave_the_state_until_they_are_accepted(accepted: int):
    """A token and two drafted ones behind it; then as many are replayed as were accepted."""
    shape = SHAPES[1]
    (mixed, steps, rates), state = inputs(shape, 4), random(2, 4, 5, 3, dtype=F32)
    log, plain = torch.full((2, 4, 2, update_width(5, 3)), torch.nan), state.clone()
    rows = spans((0, 9, 3))
    rows.draft(np.array([2, 0]), np.array([0, 0]))
    drafted = selective_scan(mixed[:3], steps[:3], rates, state, shape, rows, log)
    one_by_one = torch.cat(
        [
            selective_scan(mixed[t : t + 1], steps[t : t + 1], rates, plain, shape, spans((0, 9 + t, 1)))
            for t in range(1)
        ]
    )
    torch.testing.assert_close(drafted[:1], one_by_one)
    torch.testing.assert_close(state, plain)
    rows = spans((0, 10 + accepted, 1))
    rows.draft(np.array([0, 0]), np.array([accepted, 0]))
    found = selective_scan(mixed[3:], steps[3:], rates, state, shape, rows, log)
    for t in range(1, 1 + accepted):
        out = selective_scan(mixed[t : t + 1], steps[t : t + 1], rates, plain, shape, spans((0, 9 + t, 1)))
        torch.testing.assert_close(drafted[t : t + 1], out)
    expected = selective_scan(mixed[3:], steps[3:], rates, plain, shape, spans((0, 10 + accepted, 1)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize(("groups", "normed"), [(1, True), (3, True), (2, False)])
def test_a_grouped_norm(groups: int, normed: bool, dtype: torch.dtype, absolute: float, relative: float):
    """The gate is applied first; each group has a size of its own."""
    width, factor, eps = 4, 0.6, 0.3
    x, gate = random(2, groups * width, dtype=F32), random(2, groups * width, dtype=dtype, seed=1, scale=2)
    weight = random(groups * width, dtype=dtype, seed=2) if normed else None
    exact = torch.zeros(2, groups * width, dtype=torch.float64)
    for row in range(2):
        for group in range(groups):
            places = range(group * width, (group + 1) * width)
            gated = {}
            for i in places:
                g = factor * gate[row, i].item()
                gated[i] = x[row, i].item() * g / (1 + math.exp(-g))
            size = math.sqrt(sum(value**2 for value in gated.values()) / width + eps) if normed else 1.0
            for i in places:
                exact[row, i] = gated[i] / size * (1.0 if weight is None else weight[i].item())
    before = x.clone()
    found = grouped_norm(x, gate, weight, groups, eps, factor)
    assert found.dtype == dtype and torch.equal(x, before)
    assert_close(found, exact, absolute, relative)


def test_rates_of_a_layer():
    decay, bias, skip = (random(3, dtype=torch.bfloat16, seed=seed) for seed in (1, 2, 3))
    rates = ScanRates.of(decay, bias, skip)
    assert rates.packed.dtype == F32 and rates.packed.is_contiguous() and rates.step_factor == 1.0
    for one, other in ((rates.decay, decay), (rates.bias, bias), (rates.skip, skip)):
        assert torch.equal(one, other.float())


def test_sizes_of_a_shape():
    shape = MambaShape(heads=6, head_dim=10, groups=3, state_size=33)
    assert shape.values == 60 and shape.channels == 60 + 2 * 3 * 33
