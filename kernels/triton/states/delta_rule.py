"""kernels.ops.states.delta_rule on CUDA: a program per row, value head and some of its values, token by
token.

A program holds its part of the state in registers from the row's first token in a step to the last one, so
that a state moves twice per step. Sums over N are within a program, whose sizes follow from the model: a
token's bits depend on its row alone. A prompt's tokens follow one another: correct, and slow for long ones.
Bytes moved: the state twice, and 4 * (2 N + 2 D) per token and head. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.states import delta_rule as by_torch
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.spans import AnySpans, Spans
from kernels.triton.requirements import next_power_of_2
from kernels.triton.states.spans import save_of, softplus, span_of

STATE_VALUES = 4096
"""Of a program: 32 in each thread."""


def columns_of(keys: int, values: int) -> int:
    """Returns how many values of a head's state [keys, values] a program has, a power of two."""
    return min(next_power_of_2(values), max(1, STATE_VALUES // next_power_of_2(keys)))


@triton.jit
def _unit(x):
    """[N] -> [N], of length 1, but for what is added to its square."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def _delta_kernel(
    mixed,  # [T, C]: queries, keys, values
    gates,  # [T, 2 H]: b, a
    decay,  # [H]
    bias,  # [H]
    state,  # [slots, H, N, D]
    rows,  # [R]
    starts,  # [R]
    num_rows,  # [1]
    firsts,  # [R + 1]
    saves,  # [4, R]
    out,  # [T, H, D]
    gates_stride,
    saves_pitch,
    scale,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, start, first, count = span_of(rows, starts, num_rows, firsts)
    head = tl.program_id(1)
    n, d = tl.arange(0, KEYS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    of_key, of_value = n < KEY_DIM, d < VALUE_DIM
    ALL_KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    CHANNELS: tl.constexpr = 2 * ALL_KEYS + HEADS * VALUE_DIM
    if row < 0:
        for t in range(0, count):
            at = ((first + t) * HEADS + head) * VALUE_DIM + d
            tl.store(out + at, tl.zeros([COLUMNS], tl.float32), mask=of_value)
        return
    SIZE: tl.constexpr = KEY_DIM * VALUE_DIM
    inside = of_key[:, None] & of_value[None, :]
    of_state = head * SIZE + n[:, None] * VALUE_DIM + d[None, :]
    own = state + row * (HEADS * SIZE)
    held = tl.load(own + of_state, mask=inside & (start > 0), other=0.0)
    rate, shift = tl.load(decay + head), tl.load(bias + head)
    behind, target = save_of(saves, 0, saves_pitch)
    behind_2, target_2 = save_of(saves, 1, saves_pitch)
    of_group = head // (HEADS // KEY_HEADS) * KEY_DIM + n
    for t in range(0, count):
        token = mixed + (first + t) * CHANNELS
        query = _unit(tl.load(token + of_group, mask=of_key, other=0.0)) * scale
        key = _unit(tl.load(token + ALL_KEYS + of_group, mask=of_key, other=0.0))
        value = tl.load(token + 2 * ALL_KEYS + head * VALUE_DIM + d, mask=of_value, other=0.0)
        gate = gates + (first + t) * gates_stride + head
        b, a = tl.load(gate).to(tl.float32), tl.load(gate + HEADS).to(tl.float32)
        held = held * tl.exp(-rate * softplus(a + shift))
        change = (value - tl.sum(held * key[:, None], 0)) * (1.0 / (1.0 + tl.exp(-b)))
        held = held + key[:, None] * change[None, :]
        at = ((first + t) * HEADS + head) * VALUE_DIM + d
        tl.store(out + at, tl.sum(held * query[:, None], 0), mask=of_value)
        if t + 1 == behind:
            tl.store(state + target * (HEADS * SIZE) + of_state, held, mask=inside)
        if t + 1 == behind_2:
            tl.store(state + target_2 * (HEADS * SIZE) + of_state, held, mask=inside)
    tl.debug_barrier()  # all threads have read what was held
    tl.store(own + of_state, held, mask=inside & (count > 0))


def delta_rule(
    mixed: torch.Tensor,
    gates: torch.Tensor,
    decay: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    shape: DeltaShape,
    spans: AnySpans,
    log: torch.Tensor | None = None,
) -> torch.Tensor:
    """mixed: [T, C] float32, contiguous: queries, keys and values of all heads; gates: [T, 2 H], b and a,
    rows may be strided; decay, bias: [H] float32; state: [slots, H, N, D] float32, which changes: rows, and
    slots that states are saved in. Returns [T, H, D] float32. Spans on the host are computed by torch, and
    may have drafted tokens."""
    if isinstance(spans, Spans):
        return by_torch.delta_rule(mixed, gates, decay, bias, state, shape, spans, log)
    heads, size = shape.value_heads, (shape.value_heads, shape.key_dim, shape.value_dim)
    assert mixed.is_contiguous() and mixed.shape[1] == shape.channels and gates.stride(1) == 1
    assert state.shape[1:] == size and state.is_contiguous()
    out = torch.empty((len(mixed), heads, shape.value_dim), dtype=torch.float32, device=mixed.device)
    columns = columns_of(shape.key_dim, shape.value_dim)
    if len(spans):
        _delta_kernel[(len(spans), heads, triton.cdiv(shape.value_dim, columns))](
            mixed,
            gates,
            decay,
            bias,
            state,
            *spans.columns,
            out,
            gates.stride(0),
            spans.saves.stride(0),
            shape.key_dim**-0.5,
            KEY_HEADS=shape.key_heads,
            HEADS=heads,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            KEYS=next_power_of_2(shape.key_dim),
            COLUMNS=columns,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
