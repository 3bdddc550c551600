"""How families spell the sizes of Mamba-2 layers. Needs no torch."""

import math
from collections.abc import Sequence

from worker.config.decoder import MambaConfig
from worker.config.delta import MOST_TAPS
from worker.config.hf_config import Fields

MODULE = "model.layers.{layer}.mamba"
MAMBA_NAMES: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.projections": (f"{MODULE}.in_proj",),
    "blocks.{layer}.attention.convolution": (f"{MODULE}.conv1d",),
    "blocks.{layer}.attention.rates": (f"{MODULE}.A_log", f"{MODULE}.dt_bias", f"{MODULE}.D"),
    "blocks.{layer}.attention.norm": (f"{MODULE}.norm",),
    "blocks.{layer}.attention.mamba_output": (f"{MODULE}.out_proj",),
}
"""The parts of a layer, beside those of attention in others."""
MAMBA_HARMLESS = ("mamba_chunk_size",)
"""Fields that say how a prompt is cut, which changes nothing here."""
_SIZES = (
    *("mamba_n_heads", "mamba_n_groups", "mamba_expand", "mamba_d_head", "mamba_d_state", "mamba_d_conv"),
    *("mamba_conv_bias", "mamba_proj_bias", "time_step_limit"),
)
_NO_LIMIT = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
"""How transformers writes steps of any size."""


def read_mambas(fields: Fields, hidden_size: int, scans: Sequence[bool]) -> tuple[MambaConfig | None, ...]:
    """Returns the Mamba-2 layer of each layer that scans. scans: by layer; where none does, sizes count for
    nothing, and the result is empty. Raises StartupError."""
    if not any(scans):
        for name in _SIZES:
            fields.has(name)
        return ()
    config = read_mamba(fields, fields.integer("mamba_expand", 2) * hidden_size)
    return tuple(config if scan else None for scan in scans)


def read_mamba(fields: Fields, width: int, called: str = "mamba_expand * hidden_size") -> MambaConfig:
    """Returns the sizes that all Mamba-2 layers of a model have. width: values of all heads; called: what it
    is made of. Raises StartupError."""
    heads, groups = fields.integer("mamba_n_heads", 128), fields.integer("mamba_n_groups", 1)
    if width % heads:
        raise fields.wrong("mamba_n_heads", f"must divide {called}, {width}")
    if heads % groups:
        raise fields.wrong("mamba_n_groups", f"must divide mamba_n_heads, {heads}")
    if fields.value("mamba_d_head") not in (None, "auto", width // heads):
        raise fields.wrong("mamba_d_head", f"must be {width // heads}, {called} / heads")
    if fields.has("time_step_limit") and fields.value("time_step_limit") not in _NO_LIMIT:
        raise fields.wrong("time_step_limit", "nothing but [0, Infinity] is supported")
    return MambaConfig(
        heads=heads,
        head_dim=width // heads,
        groups=groups,
        state_size=fields.integer("mamba_d_state", 256),
        taps=fields.integer("mamba_d_conv", 4, least=2, most=MOST_TAPS),
        convolution_bias=fields.boolean("mamba_conv_bias", True),
        projection_bias=fields.boolean("mamba_proj_bias", False),
    )
