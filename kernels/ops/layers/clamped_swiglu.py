"""The gated activation of gpt-oss.

    out = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g),   g = min(gate, limit)

gate_up: [T, 2 * I], gate before up. Computed in float32, rounded once. Bytes moved: 2 * I read and I written
per token.
"""

import torch

from kernels.triton.requirements import uses_triton


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]. Dispatches on the device."""
    if uses_triton(gate_up):
        from kernels.triton.elementwise.clamped_swiglu import clamped_swiglu as on_device

        return on_device(gate_up, alpha, limit)
    return clamped_swiglu_reference(gate_up, alpha, limit)


def clamped_swiglu_reference(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """The same by torch."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = wide.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)
