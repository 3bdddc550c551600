"""Activations of the feed-forward layers: plain f(x), and gated f(gate) * up.

x:       [T, I]
gate_up: [T, 2 * I], gate before up, as one matrix product leaves them

    silu(x)     = x * sigmoid(x)
    gelu(x)     = x * Phi(x), Phi the normal distribution's cumulative function
    gelu_new(x) = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2
    quick_gelu(x) = x * sigmoid(1.702 * x)
    relu(x)     = max(x, 0)
    clamped_swiglu = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g),   g = min(gate, limit)

The last one, of gpt-oss, is gated in another way. The functions are computed in float32 and rounded once per
operation. A value's result does not depend on what else is in the tensor. Bytes moved: gated reads 2 * I and
writes I values per token; a fused kernel reads gate_up once.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

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


PIECE = 128
"""Values that torch is given a multiple of, per thread."""


def activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """[T, I] -> [T, I], such that a value's bits do not depend on its place.

    On a CPU torch computes whole vectors by one formula and what is left of a thread's share by another one,
    which rounds differently. With shares that are multiples of the vector width nothing is left.
    """
    if x.device.type != "cpu" or name == "relu":
        return ACTIVATIONS[name](x)
    flat = x.reshape(-1)
    missing = -flat.numel() % (PIECE * torch.get_num_threads())
    result = ACTIVATIONS[name](F.pad(flat, (0, missing)) if missing else flat.contiguous())
    return result[: flat.numel()].view(x.shape)


def gated_activation(gate_up: torch.Tensor, name: str, factor: float = 1.0) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]. factor: of the gate."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate if factor == 1 else gate * factor, name) * up


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = wide.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)
