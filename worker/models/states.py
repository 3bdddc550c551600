"""Builds layers that keep a state, gated delta nets and Mamba-2, and attention with gated outputs, from their
sizes."""

from collections.abc import Sequence

import torch

from kernels.api import DeltaShape, MambaShape
from worker.config.decoder import DecoderConfig, DeltaConfig, MambaConfig
from worker.layers.attention.rotary import rotary_order
from worker.layers.attention.self_attention import Attention, GatedAttention
from worker.layers.base import Split
from worker.layers.linear import ColumnLinear, Part, RowLinear, order_of_heads
from worker.layers.norm import HeadNormLayers
from worker.layers.states import (
    Convolution,
    GatedDeltaNet,
    GatedHeadNorm,
    GroupedNorm,
    Mamba2,
    MambaRates,
    Rates,
)
from worker.parallel import Placement


def gated_delta_net(config: DecoderConfig, delta: DeltaConfig, place: Placement) -> GatedDeltaNet:
    """Returns the attention part of a block that keeps a state: of the value heads of this rank, and their
    queries and keys."""
    group = place.group
    keys, heads = group.units(delta.key_heads), group.split(delta.value_heads)
    shape = DeltaShape(len(keys), heads, delta.key_dim, delta.value_dim)
    values = delta.value_heads * delta.value_dim
    of_keys = Part(delta.key_heads * delta.key_dim, _values_of(keys, delta.key_dim))
    of_values = Part(values, group.slice(values))
    gates = Part(delta.value_heads, group.slice(delta.value_heads))
    parts: tuple[Part, ...] = of_keys, of_keys, of_values, of_values, gates, gates
    module_parts: tuple[int, ...] = 3, 1, 1, 1
    if delta.grouped:
        parts, module_parts = _grouped_parts(delta, keys, group.slice(delta.value_heads)), ()
    return GatedDeltaNet(
        ColumnLinear(config.hidden_size, parts, False, place, module_parts=module_parts),
        Convolution(split_of((of_keys, of_keys, of_values)), delta.taps, place),
        Rates(delta.value_heads, place),
        GatedHeadNorm(shape.value_dim, config.norm_eps, place),
        RowLinear(values, config.hidden_size, False, place, units=delta.value_heads),
        shape,
    )


def _values_of(units: range, width: int) -> slice:
    """Returns the values of some heads or groups, of so many values each."""
    return slice(units.start * width, units.stop * width)


def split_of(parts: Sequence[Part]) -> Split:
    """Returns what a rank holds of parts that stand side by side in one tensor."""
    held, first = list[slice](), 0
    for part in parts:
        held.append(slice(first + part.local.start, first + part.local.stop))
        first += part.length
    return Split(first, tuple(held))


def _grouped_parts(delta: DeltaConfig, keys: range, value_heads: slice) -> tuple[Part, ...]:
    """Query, key, values and z, side by side for each key head; then b and a of each key head. keys,
    value_heads: of this rank."""
    heads = delta.value_heads // delta.key_heads  # of values, for each key head
    size, values = delta.key_dim, heads * delta.value_dim
    width = 2 * size + 2 * values
    held = (value_heads.stop - value_heads.start) // len(keys)  # value heads of each of these key heads
    skipped = value_heads.start - keys.start * heads

    def rows(of_group: int, first: int, count: int) -> tuple[int, ...]:
        groups = range(len(keys))
        return tuple(group * of_group + first + at for group in groups for at in range(count))

    own, skip = held * delta.value_dim, skipped * delta.value_dim
    order = (
        *(rows(width, 0, size) + rows(width, size, size)),
        *(rows(width, 2 * size + skip, own) + rows(width, 2 * size + values + skip, own)),
    )
    gates = rows(2 * heads, skipped, held) + rows(2 * heads, heads + skipped, held)
    return (
        Part(delta.key_heads * width, _values_of(keys, width), order),
        Part(2 * delta.value_heads, _values_of(keys, 2 * heads), gates),
    )


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
    queries, keys = place.group.units(heads), place.group.units(kv_heads)
    local = _values_of(keys, head_dim)

    def of_heads(first: int, values: tuple[int, ...]) -> Part:
        local_heads = range(len(queries))
        rows = (2 * head * head_dim + first + value for head in local_heads for value in values)
        return Part(2 * heads * head_dim, _values_of(queries, 2 * head_dim), tuple(rows))

    key = Part(kv_heads * head_dim, local, order_of_heads(order, len(keys)))
    query, value = of_heads(0, order), Part(kv_heads * head_dim, local)
    gate = of_heads(head_dim, tuple(range(head_dim)))
    return GatedAttention(
        ColumnLinear(config.hidden_size, (query, key, value), config.qkv_bias, place),
        ColumnLinear(config.hidden_size, (gate,), config.qkv_bias, place),
        attention,
        RowLinear(heads * head_dim, config.hidden_size, config.output_bias, place, units=heads),
        norms,
    )


def mamba2(config: DecoderConfig, mamba: MambaConfig, place: Placement) -> Mamba2:
    """Returns the first part of a block that keeps a state: of the heads of this rank, and their groups."""
    group = place.group
    groups, heads = group.units(mamba.groups), group.split(mamba.heads)
    shape = MambaShape(heads, mamba.head_dim, len(groups), mamba.state_size)
    values = mamba.heads * mamba.head_dim
    of_values = Part(values, group.slice(values))
    of_groups = Part(mamba.groups * mamba.state_size, _values_of(groups, mamba.state_size))
    steps = Part(mamba.heads, group.slice(mamba.heads))
    convolved = of_values, of_groups, of_groups
    factors = None
    if mamba.input_factors != (1.0, 1.0, 1.0):
        counts = torch.tensor([part.held for part in convolved])
        factors = torch.tensor(mamba.input_factors).repeat_interleave(counts).to(place.device)
    return Mamba2(
        ColumnLinear(config.hidden_size, (of_values, *convolved, steps), mamba.projection_bias, place),
        Convolution(split_of(convolved), mamba.taps, place, mamba.convolution_bias, factors),
        MambaRates(mamba.heads, place, mamba.step_factor),
        GroupedNorm(values, mamba.groups, config.norm_eps, place, mamba.gate_factor, mamba.normed),
        RowLinear(values, config.hidden_size, mamba.projection_bias, place, units=mamba.heads),
        shape,
    )
