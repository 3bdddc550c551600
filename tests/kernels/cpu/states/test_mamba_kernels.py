"""The compiled operations of Mamba-2 layers against those of kernels.ops.states, and these against
float64."""

import pytest
import torch
from torch.nn.functional import silu, softplus

from kernels.cpu_ops import CpuOps
from kernels.ops.layers.norms import grouped_norm
from kernels.ops.states.selective_scan import MambaShape, ScanRates, selective_scan
from kernels.ops.states.spans import Spans
from kernels.ops.states.update_log import update_width
from tests.kernels.cpu.states.test_delta_kernels import spans, verify
from tests.kernels.tolerances import TOLERANCES, assert_close, random

pytestmark = pytest.mark.cpu_kernels

F32 = torch.float32
DTYPES = [torch.bfloat16, F32]
SHAPES = [MambaShape(3, 37, 1, 5), MambaShape(4, 64, 2, 16), MambaShape(6, 10, 3, 33)]
TWO_ROWS = spans((4, 0, 6), (1, 3, 2))


def inputs(
    shape: MambaShape, tokens: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, ScanRates]:
    """What is mixed, steps, and rates."""
    decay, bias, skip = (random(shape.heads, dtype=F32, seed=seed) for seed in (1, 2, 3))
    steps = random(tokens, shape.heads + 3, dtype=dtype, scale=3)[:, : shape.heads]
    return random(tokens, shape.channels, dtype=F32), steps, ScanRates.of(decay.exp(), bias, skip, 0.8)


def state_of(shape: MambaShape) -> torch.Tensor:
    return random(5, shape.heads, shape.state_size, shape.head_dim, dtype=F32)


def in_closed_form(
    mixed: torch.Tensor, steps: torch.Tensor, rates: ScanRates, state: torch.Tensor, shape: MambaShape
) -> torch.Tensor:
    """Of one row: each output as a sum over all tokens up to it and the state before them, [T, H, P]
    float64."""
    tokens, wide = len(mixed), torch.float64
    sizes = shape.values, shape.groups * shape.state_size, shape.groups * shape.state_size
    x, b, c = mixed.to(wide).split_with_sizes(sizes, dim=1)
    x = x.reshape(tokens, shape.heads, shape.head_dim)
    b, c = (
        each.reshape(tokens, shape.groups, -1).repeat_interleave(shape.heads // shape.groups, 1)
        for each in (b, c)
    )
    size = softplus(steps.to(wide) * rates.step_factor + rates.bias.to(wide))
    fallen = torch.cumsum(size * rates.decay.to(wide), 0)  # [T, H]
    past = torch.ones(tokens, tokens, dtype=wide).triu()[:, :, None]  # [from s, to t]
    weights = torch.einsum("shn,thn->sth", b, c) * torch.exp(fallen[:, None] - fallen[None]) * past
    out = torch.einsum("sth,shp->thp", weights, x * size[:, :, None])
    before = torch.einsum("thn,hnp->thp", c, state.to(wide)) * torch.exp(-fallen)[:, :, None]
    return out + before + x * rates.skip.to(wide)[:, None]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_definition(shape: MambaShape):
    """Of a row that goes on, and of one that begins, whose state does not count."""
    given, state = inputs(shape, 8, F32), state_of(shape)
    ours = selective_scan(*given, state.clone(), shape, TWO_ROWS).unflatten(1, (shape.heads, -1))
    mixed, steps, rates = given
    begun = in_closed_form(mixed[:6], steps[:6], rates, 0 * state[4], shape)
    gone_on = in_closed_form(mixed[6:], steps[6:], rates, state[1], shape)
    torch.testing.assert_close(ours.double(), torch.cat((begun, gone_on)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_selective_scan(shape: MambaShape, dtype: torch.dtype):
    """Outputs and states; steps are part of longer rows."""
    given, state = inputs(shape, 8, dtype), state_of(shape)
    expected_state = state.clone()
    expected = selective_scan(*given, expected_state, shape, TWO_ROWS)
    out = CpuOps(dtype).selective_scan(*given, state, shape, TWO_ROWS)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state, expected_state, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_cut_gives_the_same_bits(dtype: torch.dtype):
    """A row in one step, token by token, and beside others."""
    shape, kernels = SHAPES[1], CpuOps(dtype)
    mixed, steps, rates = inputs(shape, 9, dtype)

    def run(cuts: list[int], row: int) -> tuple[torch.Tensor, torch.Tensor]:
        state, parts = torch.rand(6, shape.heads, shape.state_size, shape.head_dim), []
        for start, end in zip([0, *cuts], [*cuts, 9], strict=True):
            beside = [(5, 0, 2)] if row == 3 else []
            rows = spans((row, start, end - start), *beside)
            tokens = [*range(start, end), *range(2 * len(beside))]
            out = kernels.selective_scan(mixed[tokens], steps[tokens], rates, state, shape, rows)
            parts.append(out[: end - start])
        return torch.cat(parts), state[row]

    whole = run([], 2)
    for cuts, row in (([1, 2, 3, 4, 5, 6, 7, 8], 2), ([2, 7], 3)):
        assert all(map(torch.equal, run(cuts, row), whole))


@pytest.mark.parametrize("compiled", [False, True])
def test_states_that_are_saved(compiled: bool):
    """Behind tokens of a step: those of a row that was cut there."""
    shape, scan = SHAPES[2], CpuOps(F32).selective_scan if compiled else selective_scan
    mixed, steps, rates = inputs(shape, 9, F32)
    state = torch.rand(6, shape.heads, shape.state_size, shape.head_dim)
    whole = spans((1, 0, 9))
    whole.save(1, 2, 4)
    whole.save(1, 9, 5)
    scan(mixed, steps, rates, state, shape, whole)
    for begin, end, saved in ((0, 2, 4), (2, 9, 5), (0, 0, 1)):
        if end:
            scan(mixed[begin:end], steps[begin:end], rates, state, shape, spans((0, begin, end - begin)))
        assert torch.equal(state[0], state[saved])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "width"), [(1, 50), (3, 16), (2, 5)])
def test_norms(groups: int, width: int, dtype: torch.dtype):
    """The gate is part of longer rows; torch and the kernel against float64."""
    size = groups * width
    x, weight = random(4, size, dtype=F32), random(size, dtype=dtype)
    gate = random(4, size + 7, dtype=dtype)[:, :size]
    factor = 0.7
    gated = (x.double() * silu(factor * gate.double())).unflatten(1, (groups, width))
    exact = gated / (gated.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    exact = exact.flatten(1) * weight.double()
    bounds = next(bounds for kind, *bounds in TOLERANCES if kind == dtype)
    for part in (grouped_norm, CpuOps(dtype).grouped_norm):
        assert_close(part(x.clone(), gate, weight, groups, 1e-6, factor), exact, *bounds)
        assert_close(part(x.clone(), gate, None, groups, 1e-6, factor), gated.flatten(1), *bounds)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_that_are_drafted(shape: MambaShape, compiled: bool):
    """Outputs and states are those of tokens that come one by one, whatever was refused between them."""
    scan = CpuOps(F32).selective_scan if compiled else selective_scan
    (mixed, steps, rates), state = inputs(shape, 15, F32), state_of(shape)
    log = torch.rand(4, shape.heads, 3, update_width(shape.state_size, shape.head_dim))

    def step(tokens: torch.Tensor, rows: Spans) -> torch.Tensor:
        return scan(mixed[tokens], steps[tokens], rates, state, shape, rows, log)

    outputs, _ = verify(step)
    alone = [step(torch.tensor([at]), spans((0, at, 1))) for at in range(12)]
    bounds = {"rtol": 0.0, "atol": 0.0 if compiled else 1e-5}
    torch.testing.assert_close(torch.cat(outputs), torch.cat(alone), **bounds)
    torch.testing.assert_close(state[1], state[0], **bounds)
