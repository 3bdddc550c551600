"""kernels.ops.states.selective_scan on CUDA: a program per row, head and some of its values, token by token.

As kernels.triton.states.delta_rule: a program holds its part of the state in registers, sums over N are
within it, and a token's bits depend on its row alone. Bytes moved: the state twice in a step, and
4 * (2 N + 2 P) per token and head. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.states import selective_scan as by_torch
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import AnySpans, Spans
from kernels.triton.requirements import next_power_of_2
from kernels.triton.states.delta_rule import columns_of
from kernels.triton.states.spans import save_of, softplus, span_of


@triton.jit
def _scan_kernel(
    mixed,  # [T, C]: x, b, c
    steps,  # [T, H]
    rates,  # [3, H]: decay, bias, skip
    state,  # [slots, H, N, P]
    rows,  # [R]
    starts,  # [R]
    num_rows,  # [1]
    firsts,  # [R + 1]
    saves,  # [4, R]
    out,  # [T, H * P]
    steps_stride,
    saves_pitch,
    step_factor,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    STATE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, start, first, count = span_of(rows, starts, num_rows, firsts)
    head = tl.program_id(1)
    n, p = tl.arange(0, KEYS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    of_key, of_value = n < STATE, p < HEAD_DIM
    VALUES: tl.constexpr = HEADS * HEAD_DIM
    CHANNELS: tl.constexpr = VALUES + 2 * GROUPS * STATE
    if row < 0:
        for t in range(0, count):
            at = (first + t) * VALUES + head * HEAD_DIM + p
            tl.store(out + at, tl.zeros([COLUMNS], tl.float32), mask=of_value)
        return
    SIZE: tl.constexpr = STATE * HEAD_DIM
    inside = of_key[:, None] & of_value[None, :]
    of_state = head * SIZE + n[:, None] * HEAD_DIM + p[None, :]
    own = state + row * (HEADS * SIZE)
    held = tl.load(own + of_state, mask=inside & (start > 0), other=0.0)
    rate, shift = tl.load(rates + head), tl.load(rates + HEADS + head)
    skip = tl.load(rates + 2 * HEADS + head)
    behind, target = save_of(saves, 0, saves_pitch)
    behind_2, target_2 = save_of(saves, 1, saves_pitch)
    of_group = VALUES + head // (HEADS // GROUPS) * STATE + n
    for t in range(0, count):
        token = mixed + (first + t) * CHANNELS
        x = tl.load(token + head * HEAD_DIM + p, mask=of_value, other=0.0)
        b = tl.load(token + of_group, mask=of_key, other=0.0)
        c = tl.load(token + GROUPS * STATE + of_group, mask=of_key, other=0.0)
        step = tl.load(steps + (first + t) * steps_stride + head).to(tl.float32)
        size = softplus(step * step_factor + shift)
        held = held * tl.exp(-rate * size) + b[:, None] * (x * size)[None, :]
        at = (first + t) * VALUES + head * HEAD_DIM + p
        tl.store(out + at, x * skip + tl.sum(held * c[:, None], 0), mask=of_value)
        if t + 1 == behind:
            tl.store(state + target * (HEADS * SIZE) + of_state, held, mask=inside)
        if t + 1 == behind_2:
            tl.store(state + target_2 * (HEADS * SIZE) + of_state, held, mask=inside)
    tl.debug_barrier()  # all threads have read what was held
    tl.store(own + of_state, held, mask=inside & (count > 0))


def selective_scan(
    mixed: torch.Tensor,
    steps: torch.Tensor,
    rates: ScanRates,
    state: torch.Tensor,
    shape: MambaShape,
    spans: AnySpans,
    log: torch.Tensor | None = None,
) -> torch.Tensor:
    """mixed: [T, C] float32, contiguous: x, b and c of all heads and groups; steps: [T, H], rows may be
    strided; state: [slots, H, N, P] float32, which changes: rows, and slots that states are saved in. Returns
    [T, H * P] float32. Spans on the host are computed by torch, and may have drafted tokens."""
    if isinstance(spans, Spans):
        return by_torch.selective_scan(mixed, steps, rates, state, shape, spans, log)
    size = shape.heads, shape.state_size, shape.head_dim
    assert mixed.is_contiguous() and mixed.shape[1] == shape.channels and steps.stride(1) == 1
    assert state.shape[1:] == size and state.is_contiguous() and rates.packed.is_contiguous()
    out = torch.empty((len(mixed), shape.values), dtype=torch.float32, device=mixed.device)
    columns = columns_of(shape.state_size, shape.head_dim)
    if len(spans):
        _scan_kernel[(len(spans), shape.heads, triton.cdiv(shape.head_dim, columns))](
            mixed,
            steps,
            rates.packed,
            state,
            *spans.columns,
            out,
            steps.stride(0),
            spans.saves.stride(0),
            rates.step_factor,
            GROUPS=shape.groups,
            HEADS=shape.heads,
            STATE=shape.state_size,
            HEAD_DIM=shape.head_dim,
            KEYS=next_power_of_2(shape.state_size),
            COLUMNS=columns,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
