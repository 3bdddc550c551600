"""Heads and channels of every size around a vector, in gated delta nets and Mamba-2 layers: against their
references in float64, and beside states that stay."""

import numpy as np
import pytest
import torch

from kernels.cpu_ops import CpuOps
from kernels.ops.states.convolution import convolution
from kernels.ops.states.delta_rule import DeltaShape, delta_rule
from kernels.ops.states.selective_scan import MambaShape, ScanRates, selective_scan
from kernels.ops.states.update_log import padded, update_width
from tests.kernels.cpu.states.test_delta_kernels import spans
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

F32 = torch.float32
SIZES = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65]
ROWS = spans((2, 0, 3), (0, 7, 1))
"""Rows 2 and 0 of four: one begins, one goes on."""


def states(*shape: int) -> torch.Tensor:
    return random(4, *shape, dtype=F32, seed=3)


@pytest.mark.parametrize("values", SIZES)
@pytest.mark.parametrize("keys", [1, 16, 18])
def test_values_of_a_head(keys: int, values: int):
    """Of two heads side by side; states of other rows stay."""
    shape = DeltaShape(1, 2, keys, values)
    mixed, gates = random(4, shape.channels, dtype=F32), random(4, 4, dtype=F32, seed=1)
    decay, bias = random(2, dtype=F32, seed=2).exp(), random(2, dtype=F32, seed=4)
    state = states(2, keys, values)
    before, expected_state = state.clone(), state.clone()
    wide = mixed, gates, decay, bias
    expected = delta_rule(*wide, expected_state, shape, ROWS)
    out = CpuOps(F32).delta_rule(*wide, state, shape, ROWS)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state, expected_state, rtol=2e-5, atol=2e-5)
    assert torch.equal(state[[1, 3]], before[[1, 3]])


@pytest.mark.parametrize("values", SIZES)
def test_values_of_a_scan(values: int):
    shape = MambaShape(4, values, 2, 5)
    mixed, steps = random(4, shape.channels, dtype=F32), random(4, 4, dtype=F32, seed=1)
    rates = ScanRates.of(*(random(4, dtype=F32, seed=seed).abs() for seed in (2, 3, 4)))
    state = states(4, 5, values)
    before, expected_state = state.clone(), state.clone()
    expected = selective_scan(mixed, steps, rates, expected_state, shape, ROWS)
    out = CpuOps(F32).selective_scan(mixed, steps, rates, state, shape, ROWS)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state, expected_state, rtol=2e-5, atol=2e-5)
    assert torch.equal(state[[1, 3]], before[[1, 3]])


@pytest.mark.parametrize("channels", [1, 15, 16, 17, 127, 128, 129, 144, 257])
@pytest.mark.parametrize("taps", [2, 3])
def test_channels_around_a_block(channels: int, taps: int, threads: int):
    """A unit has 128 of them, whichever thread takes it."""
    x, weight = random(4, channels, dtype=F32), random(taps, channels, dtype=F32, seed=1)
    state, bias = states(taps - 1, channels), random(channels, dtype=F32, seed=2)
    expected_state = state.clone()
    expected = convolution(x, weight, bias, expected_state, ROWS)
    out = CpuOps(F32).convolution(x, weight, bias, state, ROWS)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(state, expected_state)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_convolution_of_fewer_tokens_than_it_keeps(count: int):
    """What the state kept of them is older by as many, token by token."""
    taps, channels = 5, 20
    x, weight = random(count, channels, dtype=F32), torch.zeros(taps, channels)
    state, bias = states(taps - 1, channels), torch.zeros(channels)
    before = state.clone()
    CpuOps(F32).convolution(x, weight, bias, state, spans((1, 9, count)))
    assert torch.equal(state[1], torch.cat((before[1], x))[-(taps - 1) :])
    CpuOps(F32).convolution(x, weight, bias, state, spans((3, 0, count)))
    assert torch.equal(state[3], torch.cat((torch.zeros(taps - 1, channels), x))[-(taps - 1) :])


@pytest.mark.parametrize(("keys", "values"), [(1, 1), (3, 16), (2, 17), (5, 40)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_accepted_tokens_change_a_state_in_their_order(keys: int, values: int, count: int):
    """By the kernel's function in Python; what lies behind keys and changes in an entry does not matter."""
    from kernels.cpu.states.row_state import replay

    log = torch.full((3, update_width(keys, values)), torch.nan)
    state = random(keys, values, dtype=F32)
    expected = state.double().clone()
    for at in range(3):
        key, change = random(keys, dtype=F32, seed=at), random(values, dtype=F32, seed=at + 5)
        decay = 0.5 + 0.1 * at
        log[at, :keys], log[at, padded(keys) : padded(keys) + values] = key, change
        log[at, padded(keys) + padded(values)] = decay
        if at < count:
            expected = expected * decay + key.double()[:, None] * change.double()
    memory = torch.full((keys * values + 8,), 7.0)
    memory[: keys * values] = state.flatten()
    replay(memory.data_ptr(), log.data_ptr(), count, keys, values)
    found = memory[: keys * values].view(keys, values)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    assert (memory[keys * values :] == 7).all() and (count > 0 or torch.equal(found, state))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
def test_states_are_cleared_and_copied(count: int):
    """So many numbers and no more."""
    from kernels.cpu.states.row_state import clear, copy

    source, target = random(count + 3, dtype=F32), torch.full((count + 3,), 7.0)
    copy(source.data_ptr(), target.data_ptr(), count)
    assert torch.equal(target[:count], source[:count]) and (target[count:] == 7).all()
    clear(target.data_ptr(), count)
    assert not target[:count].any() and (target[count:] == 7).all()


def test_a_state_is_saved_where_a_span_says():
    """Behind two numbers of tokens, to two rows; of one head, whose neighbours stay."""
    from kernels.cpu.states.records import Span
    from kernels.cpu.states.row_state import save

    heads, size = 3, 20
    state = random(5, heads, size, dtype=F32)
    before = state.clone()
    rows = spans((1, 0, 4))
    rows.save(1, 2, 3)
    rows.save(1, 4, 0)
    span = Span.at(np.ascontiguousarray(rows.columns).ctypes.data)
    for behind, target in ((1, None), (2, 3), (3, None), (4, 0)):
        state.copy_(before)
        save(span, behind, state.data_ptr(), 4 * heads * size, 4 * size, size)
        expected = before.clone()
        if target is not None:
            expected[target, 1] = before[1, 1]
        assert torch.equal(state, expected)
