"""Builds Mamba-2 layers from their sizes."""

import torch

from kernels.api import MambaShape
from worker.config.decoder import DecoderConfig, MambaConfig
from worker.layers.delta.parameters import Convolution
from worker.layers.linear import ColumnLinear, Part, RowLinear
from worker.layers.mamba.mamba2 import GroupedNorm, Mamba2, MambaRates
from worker.parallel import Placement


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
        RowLinear(shape.values, config.hidden_size, mamba.projection_bias, place),
        shape,
    )
