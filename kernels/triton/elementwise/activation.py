"""kernels.ops.layers.activation on CUDA: f(x), and f(gate) * up in one pass.

x: [T, I] -> [T, I], rows contiguous; gate_up: [T, 2 * I], gate before up -> [T, I]. All in float32, rounded
once; torch's gated variant rounds f too. What is no number stays none. Bytes moved: 2 * I values per token;
gated 3 * I, where activation and product one after the other move 5 * I. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

SILU, GELU, GELU_TANH, RELU, QUICK_GELU = (tl.constexpr(kind) for kind in range(5))
KINDS = {
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "quick_gelu": QUICK_GELU,
    "relu": RELU,
}
"""By the names of kernels.ops.layers.activation.ACTIVATIONS."""
BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes each for gate and up."""


@triton.jit
def _activation_kernel(
    gate_up,  # [T, 2 * I], or [T, I] if nothing is gated
    out,  # [T, I]
    stride,
    width,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = row * stride + column
    x = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    if KIND == SILU:
        y = x / (1 + tl.exp(-x))
    elif KIND == GELU:
        y = x * (1 + tl.erf(x * 0.7071067811865476)) * 0.5
    elif KIND == GELU_TANH:  # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2z))
        y = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif KIND == QUICK_GELU:
        y = x / (1 + tl.exp(-1.702 * x))
    else:
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if GATED:
        y *= tl.load(gate_up + at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


def activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """[T, I] -> [T, I], contiguous."""
    return _launch(x, x.shape[1], name, False)


def gated_activation(gate_up: torch.Tensor, name: str) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]."""
    width = gate_up.shape[1] // 2
    assert gate_up.shape[1] == 2 * width
    return _launch(gate_up, width, name, True)


def _launch(x: torch.Tensor, width: int, name: str, gated: bool) -> torch.Tensor:
    assert x.stride(1) == 1
    out = torch.empty((x.shape[0], width), dtype=x.dtype, device=x.device)
    if x.shape[0]:
        grid = x.shape[0], triton.cdiv(width, BLOCK)
        _activation_kernel[grid](x, out, x.stride(0), width, KINDS[name], gated, BLOCK, num_warps=4)
    return out


@triton.jit
def _clamped_kernel(
    gate_up,  # [T, 2 * I]
    out,  # [T, I]
    width,
    alpha,
    limit,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = gate_up + row * 2 * width + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = (up + 1) * gate / (1 + tl.exp(-alpha * gate))
    tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous() and gate_up.shape[1] == 2 * width
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = rows, triton.cdiv(width, BLOCK)
        _clamped_kernel[grid](gate_up, out, width, alpha, limit, BLOCK, num_warps=4)
    return out
