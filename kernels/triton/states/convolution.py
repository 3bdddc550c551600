"""kernels.ops.states.convolution on CUDA: a program per row and 128 channels, 16 tokens at a time.

A sum goes from the oldest token on, beginning with the bias, wherever its token stands in a step. What a row
keeps is read by all threads of its program before any of them writes it. Bytes moved: x and out once, but for
the taps, which come from L1. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.ops.states import convolution as by_torch
from kernels.ops.states.spans import AnySpans, Spans
from kernels.triton.requirements import next_power_of_2
from kernels.triton.states.spans import save_of, span_of

CHANNELS = 128
TOKENS = 16


@triton.jit
def _inputs(
    x,  # [T, C]
    kept,  # [TAPS - 1, C]
    at,
    there,
    first,
    began,
    channel,
    inside,
    x_stride,
    channels,
    TAPS: tl.constexpr,
):
    """Returns what is convolved of some tokens, [N, CHANNELS] float32. at: [N] counted from the row's first
    one in this step; those before it are kept, or zeros. there: [N] which ones are read. began: whether the
    row has had tokens before."""
    before = at < 0
    old_at = (at + TAPS - 1)[:, None] * channels + channel[None, :]
    old = tl.load(kept + old_at, mask=(there & before & began)[:, None] & inside[None, :], other=0.0)
    new_at = (first + at)[:, None] * x_stride + channel[None, :]
    new = tl.load(x + new_at, mask=(there & (at >= 0))[:, None] & inside[None, :], other=0.0)
    return tl.where(before[:, None], old, new.to(tl.float32))


@triton.jit
def _convolution_kernel(
    x,  # [T, C]
    weight,  # [TAPS, C]
    bias,  # [C]
    state,  # [slots, TAPS - 1, C]
    rows,  # [R]
    starts,  # [R]
    num_rows,  # [1]
    firsts,  # [R + 1]
    saves,  # [4, R]
    out,  # [T, C]
    channels,
    x_stride,
    saves_pitch,
    TAPS: tl.constexpr,
    KEPT: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row, start, first, count = span_of(rows, starts, num_rows, firsts)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    real, began = row >= 0, (row >= 0) & (start > 0)
    size = (TAPS - 1) * channels
    kept = state + tl.maximum(row, 0) * size
    own_bias = tl.load(bias + channel, mask=inside, other=0.0)
    for begin in range(0, count, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        there = (token < count) & real
        total = tl.zeros([TOKENS, CHANNELS], tl.float32) + own_bias[None, :]
        for tap in tl.static_range(0, TAPS):
            at = token - (TAPS - 1) + tap
            values = _inputs(x, kept, at, there, first, began, channel, inside, x_stride, channels, TAPS)
            total += values * tl.load(weight + tap * channels + channel, mask=inside, other=0.0)[None, :]
        mixed = tl.where(there[:, None], total / (1.0 + tl.exp(-total)), 0.0)
        out_at = (first + token)[:, None] * channels + channel[None, :]
        tl.store(out + out_at, mixed, mask=(token < count)[:, None] & inside[None, :])
    if row < 0:
        return
    tap = tl.arange(0, KEPT)
    of_state = tap[:, None] * channels + channel[None, :]
    stored = (tap < TAPS - 1)[:, None] & inside[None, :]
    for number in tl.static_range(0, 2):
        behind, target = save_of(saves, number, saves_pitch)
        at = behind - (TAPS - 1) + tap
        there = (tap < TAPS - 1) & (behind > 0)
        values = _inputs(x, kept, at, there, first, began, channel, inside, x_stride, channels, TAPS)
        tl.store(state + target * size + of_state, values, mask=stored & (behind > 0))
    at = count - (TAPS - 1) + tap
    there = (tap < TAPS - 1) & (count > 0)
    values = _inputs(x, kept, at, there, first, began, channel, inside, x_stride, channels, TAPS)
    tl.debug_barrier()  # all threads have read what is kept
    tl.store(kept + of_state, values, mask=stored & (count > 0))


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    state: torch.Tensor,
    spans: AnySpans,
    drafted: torch.Tensor | None = None,
) -> torch.Tensor:
    """x: [T, C], rows may be strided; weight: [taps, C] and bias: [C] float32; state: [slots, taps - 1, C]
    float32, which changes: rows, and slots that states are saved in. Returns [T, C] float32. Spans on the
    host are computed by torch, and may have drafted tokens."""
    if isinstance(spans, Spans):
        return by_torch.convolution(x, weight, bias, state, spans, drafted)
    (tokens, channels), taps = x.shape, len(weight)
    assert taps > 1 and state.shape[1:] == (taps - 1, channels) and state.is_contiguous()
    assert x.stride(1) == 1 and weight.is_contiguous() and bias.is_contiguous()
    out = torch.empty((tokens, channels), dtype=torch.float32, device=x.device)
    if len(spans):
        grid = len(spans), triton.cdiv(channels, CHANNELS)
        _convolution_kernel[grid](
            x,
            weight,
            bias,
            state,
            *spans.columns,
            out,
            channels,
            x.stride(0),
            spans.saves.stride(0),
            TAPS=taps,
            KEPT=next_power_of_2(taps - 1),
            TOKENS=TOKENS,
            CHANNELS=CHANNELS,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
