"""Layers that keep a state per row, as config.json has them: which they are, and their sizes."""

import math
from collections.abc import Sequence

from worker.config.decoder import FULL, DeltaConfig, MambaConfig
from worker.config.hf_config import Fields

LINEAR = "linear_attention"
MOST_TAPS = 1024
_FIRST_NAMES = {"mamba": LINEAR, "attention": FULL}
"""Kinds of layers, as the first files of some families call them."""


def read_deltas(fields: Fields, num_layers: int, grouped: bool) -> tuple[DeltaConfig | None, ...]:
    """Returns the gated delta net of each layer, None where attention is full. grouped: see DeltaConfig.
    Raises StartupError."""
    key_heads = fields.integer("linear_num_key_heads", 16)
    value_heads = fields.integer("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise fields.wrong(
            "linear_num_value_heads", f"must be a multiple of linear_num_key_heads, {key_heads}"
        )
    config = DeltaConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=fields.integer("linear_key_head_dim", 128, times=key_heads),
        value_dim=fields.integer("linear_value_head_dim", 128, times=value_heads),
        taps=fields.integer("linear_conv_kernel_dim", 4, least=2, most=MOST_TAPS),
        grouped=grouped,
    )
    return tuple(config if linear else None for linear in _kinds(fields, num_layers))


def _kinds(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether it keeps a state: by `layer_types`, or all but each
    `full_attention_interval`-th one."""
    interval = fields.integer("full_attention_interval", 4)
    if not fields.has("layer_types"):
        if interval > num_layers:
            raise fields.wrong("full_attention_interval", f"must be at most num_hidden_layers, {num_layers}")
        return tuple((layer + 1) % interval > 0 for layer in range(num_layers))
    return read_linear_kinds(fields, num_layers)


def read_linear_kinds(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether `layer_types` calls it LINEAR, or as the first files did, and not FULL;
    absent: all are, which is refused. Raises StartupError."""
    kinds = fields.texts("layer_types") if fields.has("layer_types") else [LINEAR] * num_layers
    kinds = [_FIRST_NAMES.get(kind, kind) for kind in kinds]
    if len(kinds) != num_layers or not set(kinds) <= {LINEAR, FULL}:
        raise fields.wrong("layer_types", f"must name {LINEAR} or {FULL} once per hidden layer")
    if FULL not in kinds:
        raise fields.wrong("layer_types", f"must name {FULL} at least once")
    return tuple(kind == LINEAR for kind in kinds)


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
    config = read_mamba(fields, fields.integer("mamba_expand", 2, times=hidden_size) * hidden_size)
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
