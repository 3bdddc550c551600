"""The references of gated delta nets against their formulas in float64, a number at a time."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.ops.layers.norms import gated_norm
from kernels.ops.states.convolution import convolution
from kernels.ops.states.delta_rule import DeltaShape, delta_rule, unit_vectors
from kernels.ops.states.spans import Spans
from kernels.ops.states.update_log import log_update, padded, replay, update_width
from tests.kernels.tolerances import TOLERANCES, assert_close, random

F32 = torch.float32
Numbers = npt.NDArray[np.float64]


def spans(*rows: tuple[int, int, int]) -> Spans:
    """(row, position of its first token, tokens)."""
    made = Spans.empty(len(rows))
    made.write(*(np.array(column) for column in zip(*rows, strict=True)))
    return made


def wide(x: torch.Tensor) -> Numbers:
    return x.double().numpy()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("dtype", [row[0] for row in TOLERANCES])
def test_a_convolution_begins_with_zeros_or_what_was_kept(taps: int, dtype: torch.dtype):
    """Row 1 goes on behind tokens that only its state knows; row 0 begins, whatever its state holds."""
    x, weight, bias = random(7, 3, dtype=dtype), random(taps, 3, dtype=F32), random(3, dtype=F32, seed=1)
    state = random(2, taps - 1, 3, dtype=F32, seed=2)
    history = {0: np.zeros((taps - 1, 3)), 1: wide(state[1])}
    out = convolution(x, weight, bias, state, spans((1, 9, 5), (0, 0, 2)))
    for row, first, count in ((1, 0, 5), (0, 5, 2)):
        inputs = np.concatenate([history[row], wide(x[first : first + count])])
        for t in range(count):
            for c in range(3):
                total = wide(bias)[c] + sum(inputs[t + k, c] * wide(weight)[k, c] for k in range(taps))
                assert abs(out[first + t, c].item() - total * sigmoid(total)) < 1e-5
        assert np.array_equal(wide(state[row]), inputs[count:])


def one_head(q: Numbers, k: Numbers, v: Numbers, state: Numbers, keep: float, share: float) -> Numbers:
    """A token of one head in the formula's own terms. state: [N, D], which changes."""
    q, k = (each / math.sqrt((each**2).sum() + 1e-6) for each in (q, k))
    state *= keep
    state += np.outer(k, (v - k @ state) * share)
    return q @ state / math.sqrt(len(q))


@pytest.mark.parametrize("shape", [DeltaShape(1, 1, 1, 1), DeltaShape(2, 4, 3, 5)], ids=str)
def test_the_delta_rule(shape: DeltaShape):
    """Two value heads share a query and a key, those of their group; a row that begins has no state."""
    groups, heads, n, d = shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim
    mixed, gates = random(4, shape.channels, dtype=F32), random(4, 2 * heads, dtype=F32, seed=1, scale=2)
    decay, bias = random(heads, dtype=F32, seed=2).exp(), random(heads, dtype=F32, seed=3)
    state = random(2, heads, n, d, dtype=F32, seed=4)
    states = {1: wide(state[1]).copy(), 0: np.zeros((heads, n, d))}
    out = delta_rule(mixed, gates, decay, bias, state, shape, spans((1, 3, 3), (0, 0, 1)))
    for token, row in enumerate((1, 1, 1, 0)):
        numbers, (b, a) = wide(mixed[token]), wide(gates[token]).reshape(2, heads)
        queries, keys = numbers[: 2 * groups * n].reshape(2, groups, n)
        values = numbers[2 * groups * n :].reshape(heads, d)
        for head in range(heads):
            group = head * groups // heads
            rate = math.log1p(math.exp(a[head] + bias[head].item()))
            keep, share = math.exp(-decay[head].item() * rate), sigmoid(b[head])
            expected = one_head(queries[group], keys[group], values[head], states[row][head], keep, share)
            assert np.abs(wide(out[token, head]) - expected).max() < 1e-5
    for row, expected in states.items():
        assert np.abs(wide(state[row]) - expected).max() < 1e-5


def test_the_length_of_unit_vectors():
    """Zeros stay zeros."""
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-4, 0.0]])
    found = unit_vectors(x)
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.8]), rtol=1e-6, atol=0)
    assert found[1].tolist() == [0, 0]
    assert found[2, 0].item() == pytest.approx(1e-4 / math.sqrt(1e-8 + 1e-6), rel=1e-5)


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
def test_a_gated_norm(dtype: torch.dtype, absolute: float, relative: float):
    x, gate, weight = (
        random(3, 2, 5, dtype=F32),
        random(3, 10, dtype=dtype, seed=1),
        random(5, dtype=dtype, seed=2),
    )
    exact = torch.zeros(3, 10, dtype=torch.float64)
    for token in range(3):
        for head in range(2):
            numbers = wide(x[token, head])
            size = math.sqrt((numbers**2).mean() + 0.5)
            for i in range(5):
                g = gate[token, 5 * head + i].item()
                exact[token, 5 * head + i] = numbers[i] / size * weight[i].item() * g * sigmoid(g)
    found = gated_norm(x, gate, weight, 0.5)
    assert found.dtype == dtype
    assert_close(found, exact, absolute, relative)


@pytest.mark.parametrize(("keys", "values"), [(1, 1), (16, 16), (17, 5)])
def test_updates_that_are_logged_are_done_as_they_were_meant(keys: int, values: int):
    """Two of three, in their order; what lies behind a key and a change in an entry does not matter."""
    heads, width = 2, update_width(keys, values)
    assert padded(16) == 16 and padded(17) == 32 and width == padded(keys) + padded(values) + 16
    log, state = torch.full((heads, 3, width), torch.nan), random(heads, keys, values, dtype=F32)
    expected = wide(state).copy()
    for at in range(3):
        key, change = (random(heads, n, dtype=F32, seed=at + n) for n in (keys, values))
        decay = random(heads, dtype=F32, seed=at).abs()
        log_update(log[:, at], key, change, decay)
        if at < 2:
            expected *= wide(decay)[:, None, None]
            expected += wide(key)[:, :, None] * wide(change)[:, None, :]
    assert np.abs(wide(replay(state, log, 2)) - expected).max() < 1e-5
    assert torch.equal(replay(state, log, 0), state)
