"""The compiled operations of gated delta nets against those of kernels.ops.states."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from kernels.cpu_ops import CpuOps
from kernels.ops.layers.norms import gated_norm
from kernels.ops.states.convolution import convolution
from kernels.ops.states.delta_rule import DeltaShape, delta_rule
from kernels.ops.states.spans import Spans
from kernels.ops.states.update_log import update_width
from tests.kernels.tolerances import TOLERANCES, assert_close, random

pytestmark = pytest.mark.cpu_kernels

F32 = torch.float32
SHAPES = [DeltaShape(1, 3, 5, 37), DeltaShape(2, 4, 16, 64), DeltaShape(3, 3, 33, 10)]
DTYPES = [torch.bfloat16, F32]


def spans(*rows: tuple[int, int, int]) -> Spans:
    """Rows with the position of their first token and how many they have."""
    made = Spans.empty(len(rows))
    made.write(*(np.array(column) for column in zip(*rows, strict=True)))
    return made


TWO_ROWS = spans((4, 0, 6), (1, 3, 2))
VERIFIED = ((0, 2, 0, 0), (2, 4, 3, 1), (4, 1, 0, 0), (5, 4, 3, 0), (6, 3, 2, 2), (9, 2, 1, 1), (11, 1, 0, 0))
"""Steps of a row of 12 tokens: where each begins, its tokens, how many of these are drafted, and accepted.
Steps without drafts follow accepted ones and refused ones."""


def verify(step: Callable[[torch.Tensor, Spans], torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """Runs VERIFIED in row 1 beside row 3, which drafts too. step: computes tokens, by number, of which those
    from 12 on are wrong. Returns the outputs of tokens that are not refused, and the number of each."""
    outputs, numbers, accepted = [], [], np.zeros(4, np.int64)
    for start, count, drafted, right in VERIFIED:
        rows = spans((3, 0, 3), (1, start, count))
        rows.draft(np.array([0, drafted, 0, 2]), accepted)
        certain = count - drafted + right
        own = [*range(start, start + certain), *range(12, 12 + count - certain)]
        out = step(torch.tensor([0, 13, 14, *own]), rows)
        outputs.append(out[3 : 3 + certain])
        numbers += own[:certain]
        accepted[1] = right
    return outputs, numbers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "taps"), [(300, 4), (7, 2), (128, 6)])
def test_convolution(channels: int, taps: int, dtype: torch.dtype):
    """Outputs and what is kept; rows of the input are longer than what is convolved."""
    x, weight = random(8, channels + 9, dtype=dtype), random(taps, channels, dtype=F32)
    state, bias = random(5, taps - 1, channels, dtype=F32), random(channels, dtype=F32, seed=1)
    expected_state, rows = state.clone(), x[:, :channels]
    expected = convolution(rows, weight, bias, expected_state, TWO_ROWS)
    out = CpuOps(dtype).convolution(rows, weight, bias, state, TWO_ROWS)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(state, expected_state)


def inputs(shape: DeltaShape, tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What is mixed, gates, decay and bias."""
    return (
        random(tokens, shape.channels, dtype=F32),
        random(tokens, 2 * shape.value_heads, dtype=dtype, scale=3),
        random(shape.value_heads, dtype=F32).exp(),
        random(shape.value_heads, dtype=F32, seed=2),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_delta_rule(shape: DeltaShape, dtype: torch.dtype):
    """Outputs and states; a row that begins takes what lies in its state for zeros."""
    given = inputs(shape, 8, dtype)
    state = random(5, shape.value_heads, shape.key_dim, shape.value_dim, dtype=F32)
    expected_state = state.clone()
    expected = delta_rule(*given, expected_state, shape, TWO_ROWS)
    out = CpuOps(dtype).delta_rule(*given, state, shape, TWO_ROWS)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state, expected_state, rtol=2e-5, atol=2e-5)


def test_gates_of_any_size():
    """The decay is that of softplus, from where it vanishes to where it is its input."""
    shape = DeltaShape(1, 9, 1, 1)
    a = torch.tensor([-100.0, -20.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 20.0, 80.0])
    gates, ones = torch.cat((torch.full((9,), -100.0), a))[None], torch.ones(9)
    state = torch.ones(1, 9, 1, 1)
    CpuOps(F32).delta_rule(torch.ones(1, 11), gates, ones, 0 * ones, state, shape, spans((0, 1, 1)))
    torch.testing.assert_close(state.flatten(), torch.exp(-softplus(a)), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_cut_gives_the_same_bits(dtype: torch.dtype):
    """A row in one step, token by token, and beside others."""
    shape, kernels = SHAPES[1], CpuOps(dtype)
    x, weight = random(9, shape.channels, dtype=dtype), random(4, shape.channels, dtype=F32)
    bias = random(shape.channels, dtype=F32)
    gates, *rates = inputs(shape, 9, dtype)[1:]

    def run(cuts: list[int], row: int) -> tuple[torch.Tensor, ...]:
        last, state = torch.rand(6, 3, shape.channels), torch.rand(6, 4, 16, 64)
        parts = []
        for start, end in zip([0, *cuts], [*cuts, 9], strict=True):
            beside = [(5, 0, 2)] if row == 3 else []
            rows = spans((row, start, end - start), *beside)
            tokens = torch.cat((x[start:end], x[: 2 * len(beside)]))
            mixed = kernels.convolution(tokens, weight, bias, last, rows)
            gated = torch.cat((gates[start:end], gates[: 2 * len(beside)]))
            parts.append(kernels.delta_rule(mixed, gated, *rates, state, shape, rows)[: end - start])
        return torch.cat(parts), state[row], last[row]

    whole = run([], 2)
    for cuts, row in (([1, 2, 3, 4, 5, 6, 7, 8], 2), ([2, 7], 3)):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run(cuts, row), whole, strict=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_states_that_are_saved(compiled: bool):
    """Behind tokens of a step: those of a row that was cut there, to the bit where kernels compute."""
    shape, kernels = SHAPES[0], CpuOps(F32)
    x, weight = random(9, shape.channels, dtype=F32), random(4, shape.channels, dtype=F32)
    bias, (gates, *rates) = random(shape.channels, dtype=F32), inputs(shape, 9, F32)[1:]
    convolve = kernels.convolution if compiled else convolution
    learn = kernels.delta_rule if compiled else delta_rule

    def run(rows: Spans, begin: int, end: int) -> None:
        mixed = convolve(x[begin:end], weight, bias, last, rows)
        learn(mixed, gates[begin:end], *rates, state, shape, rows)

    last, state = torch.rand(6, 3, shape.channels), torch.rand(6, 3, 5, 37)
    whole = spans((1, 0, 9))
    whole.save(1, 2, 4)
    whole.save(1, 7, 5)
    run(whole, 0, 9)
    for begin, end, saved in ((0, 2, 4), (2, 7, 5), (7, 9, 1)):
        run(spans((0, begin, end - begin)), begin, end)
        assert torch.equal(last[0], last[saved])
        bounds = {"rtol": 0.0, "atol": 0.0 if compiled else 1e-6}
        torch.testing.assert_close(state[0], state[saved], **bounds)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_that_are_drafted(shape: DeltaShape, compiled: bool):
    """Outputs and states are those of tokens that come one by one, whatever was refused between them."""
    kernels, x = CpuOps(F32), random(15, shape.channels, dtype=F32)
    weight = random(4, shape.channels, dtype=F32)
    bias, (gates, *rates) = random(shape.channels, dtype=F32), inputs(shape, 15, F32)[1:]
    convolve = kernels.convolution if compiled else convolution
    learn = kernels.delta_rule if compiled else delta_rule
    heads, keys, values = shape.value_heads, shape.key_dim, shape.value_dim
    last, state = torch.rand(4, 3, shape.channels), torch.rand(4, heads, keys, values)
    drafted, log = torch.rand(4, 3, shape.channels), torch.rand(4, heads, 3, update_width(keys, values))

    def step(tokens: torch.Tensor, rows: Spans) -> torch.Tensor:
        mixed = convolve(x[tokens], weight, bias, last, rows, drafted)
        return learn(mixed, gates[tokens], *rates, state, shape, rows, log)

    outputs, numbers = verify(step)
    assert sorted(set(numbers)) == numbers == list(range(12))
    alone = [step(torch.tensor([at]), spans((0, at, 1))) for at in range(12)]
    bounds = {"rtol": 0.0, "atol": 0.0 if compiled else 1e-5}
    torch.testing.assert_close(torch.cat(outputs), torch.cat(alone), **bounds)
    torch.testing.assert_close(state[1], state[0], **bounds)
    assert torch.equal(last[1], last[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 16, 50])
def test_norms_and_gates(width: int, dtype: torch.dtype):
    """The norm of heads, whose gates are part of longer rows, and the gate of attention."""
    kernels = CpuOps(dtype)
    x, rows, weight = (
        random(4, 3, width, dtype=F32),
        random(4, 3 * width + 7, dtype=dtype),
        random(width, dtype=dtype),
    )
    gate = rows[:, : 3 * width]
    bounds = next(bounds for kind, *bounds in TOLERANCES if kind == dtype)
    normed = kernels.gated_norm(x, gate, weight, 1e-6)
    assert_close(normed, gated_norm(x, gate, weight, 1e-6).double(), *bounds)
    values, gate = x.flatten(1).to(dtype), gate.contiguous()
    expected = (values.float() * torch.sigmoid(gate.float())).to(dtype)
    assert_close(kernels.output_gate(values, gate), expected.double(), *bounds)
