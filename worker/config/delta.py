"""How most families spell the sizes of gated delta nets. Needs no torch."""

from worker.config.decoder import FULL, DeltaConfig
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
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
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
