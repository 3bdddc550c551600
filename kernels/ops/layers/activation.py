"""Activations of the feed-forward layers: plain f(x), and gated f(gate) * up.

x:       [T, I]
gate_up: [T, 2 * I], gate before up, as one matrix product leaves them

    silu(x)     = x * sigmoid(x)
    gelu(x)     = x * Phi(x), Phi the normal distribution's cumulative function
    gelu_new(x) = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2
    quick_gelu(x) = x * sigmoid(1.702 * x)
    relu(x)     = max(x, 0)

The functions are computed in float32 and rounded once per operation. Bytes moved: gated reads
2 * I and writes I values per token; a fused kernel reads gate_up once.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernels.triton.requirements import uses_triton

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
}
"""By the names that config.json files use."""


def activation_reference(x: torch.Tensor, name: str) -> torch.Tensor:
    """The formula, in float32 or wider. [T, I] -> [T, I]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if name in ("silu", "swish"):
        result = wide / (1 + torch.exp(-wide))
    elif name == "gelu":
        result = wide * (1 + torch.erf(wide / math.sqrt(2))) / 2
    elif name == "quick_gelu":
        result = wide / (1 + torch.exp(-1.702 * wide))
    elif name == "relu":
        result = wide.clamp(min=0)
    else:
        result = wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
    return result.to(x.dtype)


def activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """[T, I] -> [T, I]. Dispatches on the device."""
    if uses_triton(x):
        from kernels.triton.elementwise import activation as gpu

        return gpu.activation(x, name)
    return ACTIVATIONS[name](x)


def gated_activation_reference(gate_up: torch.Tensor, name: str) -> torch.Tensor:
    """The formula. [T, 2 * I] -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activation_reference(gate, name) * up


def gated_activation(gate_up: torch.Tensor, name: str) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]. Dispatches on the device."""
    if uses_triton(gate_up):
        from kernels.triton.elementwise import activation as gpu

        return gpu.gated_activation(gate_up, name)
    gate, up = gate_up.chunk(2, dim=-1)
    return ACTIVATIONS[name](gate) * up
