"""kernels.activation's gated functions on CUDA: f(gate) * up in one pass.

gate_up: [T, 2 * I], gate before up, rows contiguous -> [T, I]. f and up are multiplied in float32 and
rounded once; torch's variant rounds f too. Bytes moved: 3 * I values per token, where activation and
product one after the other move 5 * I. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

SILU, GELU, GELU_TANH, RELU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
KINDS = {
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "relu": RELU,
}
"""By the names of kernels.activation.ACTIVATIONS."""
BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes each for gate and up."""


@triton.jit
def _gated_kernel(
    gate_up,  # [T, 2 * I]
    out,  # [T, I]
    stride,
    width,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = row * stride + column
    x = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + width, mask=inside, other=0.0).to(tl.float32)
    if KIND == SILU:
        y = x / (1 + tl.exp(-x))
    elif KIND == GELU:
        y = x * (1 + tl.erf(x * 0.7071067811865476)) * 0.5
    elif KIND == GELU_TANH:  # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2z))
        y = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        y = tl.maximum(x, 0.0)
    tl.store(out + row * width + column, (y * up).to(out.dtype.element_ty), mask=inside)


def gated_activation(gate_up: torch.Tensor, name: str) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1 and gate_up.shape[1] == 2 * width
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = rows, triton.cdiv(width, BLOCK)
        _gated_kernel[grid](gate_up, out, gate_up.stride(0), width, KINDS[name], BLOCK, num_warps=4)
    return out
