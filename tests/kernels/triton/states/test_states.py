"""Layers that keep a state per row, beside torch's definitions; a token's bits depend on its row alone."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernels.ops.layers.norms import gated_norm as gated_norm_of_torch
from kernels.ops.layers.norms import grouped_norm as grouped_norm_of_torch
from kernels.ops.states import convolution as convolution_of_torch
from kernels.ops.states import delta_rule as delta_rule_of_torch
from kernels.ops.states import selective_scan as scan_of_torch
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import DeviceSpans, Spans
from kernels.triton.states.convolution import convolution
from kernels.triton.states.delta_rule import columns_of, delta_rule
from kernels.triton.states.norms import gated_norm, grouped_norm
from kernels.triton.states.selective_scan import selective_scan
from tests.kernels.tolerances import random

DELTA = DeltaShape(key_heads=2, value_heads=4, key_dim=5, value_dim=6)
MAMBA = MambaShape(heads=4, head_dim=6, groups=2, state_size=5)
SLOTS = 7
"""Of states: rows, and two in which they are saved."""
Run = Callable[[torch.Tensor, torch.Tensor, Spans | DeviceSpans], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """An operation with a state per row: of Triton and of torch, for inputs [T, width]."""

    width: int
    state: tuple[int, ...]
    run: Run
    reference: Run


def parameters(*shape: int, seed: int) -> torch.Tensor:
    """Positive ones, float32."""
    return random(*shape, dtype=torch.float32, seed=seed).abs() + 0.1


def convolution_kind() -> Kind:
    """Of 150 channels: two programs, of which the second is not full."""
    weight, bias = (random(*shape, dtype=torch.float32, seed=len(shape)) for shape in ((4, 150), (150,)))
    return Kind(
        150,
        (3, 150),
        lambda x, state, spans: convolution(x, weight.to(x.device), bias.to(x.device), state, spans),
        lambda x, state, spans: convolution_of_torch.convolution(x, weight, bias, state, spans),
    )


def delta_kind() -> Kind:
    """Gates are strided, as the layer has them."""
    decay, bias = parameters(4, seed=1), parameters(4, seed=2)
    sizes = DELTA.channels, 2 * DELTA.value_heads

    def run(x: torch.Tensor, state: torch.Tensor, spans: Spans | DeviceSpans) -> torch.Tensor:
        mixed, gates = x.split_with_sizes(sizes, 1)
        rates = decay.to(x.device), bias.to(x.device)
        compute = delta_rule if isinstance(spans, DeviceSpans) else delta_rule_of_torch.delta_rule
        return compute(mixed.contiguous(), gates, *rates, state, DELTA, spans).flatten(1)  # type: ignore[operator]

    return Kind(sum(sizes), (4, 5, 6), run, run)


def scan_kind() -> Kind:
    """With a factor of steps."""
    packed = parameters(3, 4, seed=1)

    def run(x: torch.Tensor, state: torch.Tensor, spans: Spans | DeviceSpans) -> torch.Tensor:
        mixed, steps = x.split_with_sizes((MAMBA.channels, MAMBA.heads), 1)
        rates = ScanRates(packed.to(x.device), 0.7)
        compute = selective_scan if isinstance(spans, DeviceSpans) else scan_of_torch.selective_scan
        return compute(mixed.contiguous(), steps, rates, state, MAMBA, spans)  # type: ignore[operator]

    return Kind(MAMBA.channels + MAMBA.heads, (4, 5, 6), run, run)


KINDS = {"convolution": convolution_kind, "delta rule": delta_kind, "selective scan": scan_kind}


def spans_of(rows: list[int], starts: list[int], counts: list[int]) -> Spans:
    """Of rows whose tokens follow one another."""
    spans = Spans.empty(len(rows))
    columns = (torch.tensor(column).numpy() for column in (rows, starts, counts))
    spans.write(*columns)
    return spans


def on_device(spans: Spans, device: torch.device, padding: tuple[int, ...] = ()) -> DeviceSpans:
    """As a step has them on the device. padding: tokens of each row behind them."""
    columns = torch.from_numpy(spans.columns).to(torch.int32)
    lengths = torch.cat((columns[:, 2], torch.tensor(padding, dtype=torch.int32)))
    firsts = torch.cat((torch.zeros(1), lengths.cumsum(0))).to(torch.int32)
    room = torch.zeros(6, len(lengths), dtype=torch.int32)
    room[0, : len(spans)], room[1, : len(spans)] = columns[:, 0], columns[:, 1]
    room[2:, : len(spans)] = columns[:, 4:8].T
    moved, number = room.to(device), torch.tensor([len(spans)], dtype=torch.int32, device=device)
    return DeviceSpans(moved[0], moved[1], number, firsts.to(device), moved[2:])


def states_of(kind: Kind, device: torch.device) -> torch.Tensor:
    return random(SLOTS, *kind.state, dtype=torch.float32, seed=9).to(device)


@pytest.mark.parametrize("name", KINDS)
def test_equals_the_definition(device: torch.device, name: str):
    """A row that begins, one that goes on with one token, one with a piece of a prompt, whose state is saved
    behind its first token and in the middle; other states stay, and tokens of padding are zeros."""
    kind = KINDS[name]()
    spans = spans_of([3, 0, 4], [0, 5, 2], [2, 1, 21])
    spans.save(4, 3, 5)
    spans.save(4, 12, 6)
    x, states = random(24 + 3, kind.width, dtype=torch.float32), states_of(kind, torch.device("cpu"))
    ours = states.to(device, copy=True)
    expected = kind.reference(x[:24], states, spans)
    result = kind.run(x.to(device), ours, on_device(spans, device, (1, 2))).cpu()
    torch.testing.assert_close(result[:24], expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(ours.cpu(), states, atol=2e-5, rtol=2e-5)
    assert not result[24:].any()


@pytest.mark.parametrize("name", KINDS)
def test_a_row_in_pieces_and_in_company(device: torch.device, name: str):
    """The bits of its tokens and of its state are those of the row alone in one step."""
    kind = KINDS[name]()
    x = random(30, kind.width, dtype=torch.float32).to(device)
    whole, pieces = states_of(kind, device), states_of(kind, device)
    expected = kind.run(x[:20], whole, on_device(spans_of([1], [0], [20]), device))
    found, begin = [], 0
    for count in (2, 1, 17):
        own = x[begin : begin + count]
        company = on_device(spans_of([0, 1, 2], [4, begin, 0], [3, count, 5]), device)
        found.append(kind.run(torch.cat((x[20:23], own, x[23:28])), pieces, company)[3 : 3 + count])
        begin += count
    assert torch.equal(torch.cat(found), expected) and torch.equal(pieces[1], whole[1])


def test_inputs_of_16_bits_with_strides(device: torch.device):
    """As projections leave them."""
    kind = convolution_kind()
    wide = random(6, kind.width + 8, dtype=torch.bfloat16)
    spans, states = spans_of([1], [0], [6]), states_of(kind, torch.device("cpu"))
    ours = states.to(device, copy=True)
    expected = kind.reference(wide[:, 8:], states, spans)
    result = kind.run(wide.to(device)[:, 8:], ours, on_device(spans, device)).cpu()
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=2e-5)
    assert torch.equal(ours.cpu(), states)


def test_norms(device: torch.device):
    """By head and by group, and a gate alone; gates are views of a wider tensor."""
    x, wide = random(3, 4, 6, dtype=torch.float32), random(3, 32, dtype=torch.float16, seed=1)
    gate, weight = wide[:, 8:], random(24, dtype=torch.float16, seed=2)
    moved = wide.to(device)[:, 8:]
    found = gated_norm(x.to(device), moved, weight[:6].to(device), 1e-5)
    torch.testing.assert_close(found.cpu(), gated_norm_of_torch(x, gate, weight[:6], 1e-5))
    flat = x.flatten(1)
    for own in (weight, None):
        found = grouped_norm(flat.to(device), moved, None if own is None else own.to(device), 2, 1e-5, 0.5)
        torch.testing.assert_close(found.cpu(), grouped_norm_of_torch(flat, gate, own, 2, 1e-5, 0.5))


def test_small_steps_are_exact(device: torch.device):
    """A state that hardly decays: the logarithm of a number near 1 would lose it."""
    shape = MambaShape(heads=1, head_dim=1, groups=1, state_size=1)
    steps = torch.tensor([[-12.0], [-8.0], [-3.0], [0.0], [4.0], [30.0]])
    mixed, rates = torch.ones(6, 3), torch.zeros(3, 1)
    spans, state = spans_of([0], [0], [6]), torch.zeros(1, 1, 1, 1)
    found = selective_scan(
        mixed.to(device), steps.to(device), ScanRates(rates.to(device)), state.to(device), shape,
        on_device(spans, device),
    )  # fmt: skip
    exact = torch.nn.functional.softplus(steps.double()).cumsum(0)
    torch.testing.assert_close(found.cpu().double(), exact, atol=0.0, rtol=1e-6)


def test_programs_hold_at_most_32_values_in_a_thread():
    assert (columns_of(128, 128), columns_of(256, 64), columns_of(5, 6)) == (32, 16, 8)
    assert columns_of(1 << 13, 4) == 1
