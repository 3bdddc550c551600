"""Builds layers that keep a state, gated delta nets and Mamba-2, and attention with gated outputs, from their
sizes."""

import torch

from kernels.api import DeltaShape, MambaShape
from worker.config.decoder import DecoderConfig, DeltaConfig, MambaConfig
from worker.layers.attention.rotary import rotary_order
from worker.layers.attention.self_attention import Attention, GatedAttention
from worker.layers.linear import ColumnLinear, Part, RowLinear, order_of_heads
from worker.layers.norm import HeadNormLayers
from worker.layers.states import Convolution, GatedDeltaNet, GroupedNorm, Mamba2, MambaRates, Rates
from worker.parallel import Placement


def gated_delta_net(config: DecoderConfig, delta: DeltaConfig, place: Placement) -> GatedDeltaNet:
    """Returns the attention part of a block that keeps a state. Every rank would hold all of it."""
    shape = DeltaShape(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim)
    parts = _grouped_parts(shape) if delta.grouped else _plain_parts(shape)
    return GatedDeltaNet(
        ColumnLinear(config.hidden_size, parts, False, place),
        Convolution(shape.channels, delta.taps, place),
        Rates(shape.value_heads, place),
        GroupedNorm(shape.value_dim, 1, config.norm_eps, place),
        RowLinear(shape.values, config.hidden_size, False, place, units=shape.value_heads),
        shape,
    )


def _plain_parts(shape: DeltaShape) -> tuple[Part, ...]:
    """Queries, keys and values; z; b; a."""
    lengths = shape.channels, shape.values, shape.value_heads, shape.value_heads
    return tuple(Part(length, slice(0, length)) for length in lengths)


def _grouped_parts(shape: DeltaShape) -> tuple[Part, ...]:
    """Query, key, values and z, side by side for each key head; then b and a of each key head."""
    groups, keys = range(shape.key_heads), shape.key_dim
    heads = shape.value_heads // shape.key_heads  # of values, for each key head
    values = heads * shape.value_dim
    width = 2 * keys + 2 * values

    def rows(of_group: int, first: int, count: int) -> tuple[int, ...]:
        return tuple(group * of_group + first + at for group in groups for at in range(count))

    order = (
        *(rows(width, 0, keys) + rows(width, keys, keys)),
        *(rows(width, 2 * keys, values) + rows(width, 2 * keys + values, values)),
    )
    gates = rows(2 * heads, 0, heads) + rows(2 * heads, heads, heads)
    return Part(len(order), slice(0, len(order)), order), Part(len(gates), slice(0, len(gates)), gates)


def gated_attention(
    config: DecoderConfig,
    layer: int,
    attention: Attention,
    norms: HeadNormLayers | None,
    place: Placement,
) -> GatedAttention:
    """Returns attention with a gate. The checkpoint has each head's gate behind its query."""
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    order = rotary_order(config.ropes[layer], head_dim) or tuple(range(head_dim))
    stored, width = 2 * heads * head_dim, kv_heads * head_dim

    def of_heads(first: int, values: tuple[int, ...]) -> Part:
        rows = (2 * head * head_dim + first + value for head in range(heads) for value in values)
        return Part(stored, slice(0, stored), tuple(rows))

    key = Part(width, slice(0, width), order_of_heads(order, kv_heads))
    query, value = of_heads(0, order), Part(width, slice(0, width))
    gate = of_heads(head_dim, tuple(range(head_dim)))
    return GatedAttention(
        ColumnLinear(config.hidden_size, (query, key, value), config.qkv_bias, place),
        ColumnLinear(config.hidden_size, (gate,), config.qkv_bias, place),
        attention,
        RowLinear(heads * head_dim, config.hidden_size, config.output_bias, place, units=heads),
        norms,
    )


def mamba2(config: DecoderConfig, mamba: MambaConfig, place: Placement) -> Mamba2:
    """Returns the first part of a block that keeps a state. Every rank would hold all of it."""
    shape = MambaShape(mamba.heads, mamba.head_dim, mamba.groups, mamba.state_size)
    lengths = shape.values, shape.channels, shape.heads
    factors = None
    if mamba.input_factors != (1.0, 1.0, 1.0):
        of_groups = shape.groups * shape.state_size
        counts = torch.tensor((shape.values, of_groups, of_groups))
        factors = torch.tensor(mamba.input_factors).repeat_interleave(counts).to(place.device)
    parts = tuple(Part(length, slice(0, length)) for length in lengths)
    return Mamba2(
        ColumnLinear(config.hidden_size, parts, mamba.projection_bias, place),
        Convolution(shape.channels, mamba.taps, place, mamba.convolution_bias, factors),
        MambaRates(shape.heads, place, mamba.step_factor),
        GroupedNorm(shape.values, shape.groups, config.norm_eps, place, mamba.gate_factor, mamba.normed),
        RowLinear(shape.values, config.hidden_size, mamba.projection_bias, place, units=shape.heads),
        shape,
    )
