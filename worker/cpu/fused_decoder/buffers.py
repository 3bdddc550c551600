"""Memory for the activations of a decoder's program: worker.cpu.fused_decoder.program."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.cpu.runtime.arena import zeros

if TYPE_CHECKING:
    from worker.models.llama import LlamaModel


@dataclass(frozen=True)
class Buffers:
    """Of all layers. M: the most tokens."""

    residual: torch.Tensor  # [M, E]
    normed: torch.Tensor  # [M, E]: input of products; at the end the hidden states
    integers: torch.Tensor  # [M, the widest input of a product] uint8, where weights are quantized
    scales: torch.Tensor  # [M] float32, of the integers


@dataclass(frozen=True)
class LayerBuffers:
    """Of one layer, and of every SETS-th one after it."""

    number: int  # which set they are
    qkv: torch.Tensor  # [M, H + 2 K, D]
    turned: torch.Tensor  # [M, H + 2 K, D]: queries and keys after the rotation; no values
    mixed: torch.Tensor  # [M, H * D]
    attended: torch.Tensor  # [M, E]: to be added to the residual stream
    gate_up: torch.Tensor  # [M, 2 I]
    gated: torch.Tensor  # [M, I]
    down: torch.Tensor  # [M, E]: to be added to the residual stream


def make_buffers(model: "LlamaModel", most: int) -> Buffers:
    width, layer = model.embedding.width, model.layers[0]
    widest = max(width, layer.mlp.down.in_features, layer.attention.output.in_features)
    return Buffers(
        residual=zeros((most, width), torch.bfloat16),
        normed=zeros((most, width), torch.bfloat16),
        integers=zeros((most, widest), torch.uint8),
        scales=zeros((most,), torch.float32),
    )


def make_layer_buffers(model: "LlamaModel", most: int, number: int) -> LayerBuffers:
    attention, width, inner = (
        model.layers[0].attention,
        model.embedding.width,
        model.layers[0].mlp.down.in_features,
    )
    heads, head_dim = attention.num_heads + 2 * attention.num_kv_heads, attention.head_dim

    def empty(*shape: int) -> torch.Tensor:
        return zeros((most, *shape), torch.bfloat16)

    return LayerBuffers(
        number=number,
        qkv=empty(heads, head_dim),
        turned=empty(heads, head_dim),
        mixed=empty(attention.num_heads * head_dim),
        attended=empty(width),
        gate_up=empty(2 * inner),
        gated=empty(inner),
        down=empty(width),
    )
