"""The names that Llama's checkpoints give to the parts of worker.models.transformer; other families change
some of them. Needs no torch."""

import re
from collections.abc import Mapping

_LAYER, _ATTENTION, _MLP = (
    "model.layers.{layer}",
    "model.layers.{layer}.self_attn",
    "model.layers.{layer}.mlp",
)

NAMES: dict[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "blocks.{layer}.attention_norm": (f"{_LAYER}.input_layernorm",),
    "blocks.{layer}.attention.qkv": (
        f"{_ATTENTION}.q_proj",
        f"{_ATTENTION}.k_proj",
        f"{_ATTENTION}.v_proj",
    ),
    "blocks.{layer}.attention.output": (f"{_ATTENTION}.o_proj",),
    "blocks.{layer}.mlp_norm": (f"{_LAYER}.post_attention_layernorm",),
    "blocks.{layer}.mlp.gate_up": (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"),
    "blocks.{layer}.mlp.down": (f"{_MLP}.down_proj",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
}

HEAD_NORMS: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.query_norm": (f"{_ATTENTION}.q_norm",),
    "blocks.{layer}.attention.key_norm": (f"{_ATTENTION}.k_norm",),
}

LATENT: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.queries": (f"{_ATTENTION}.q_proj",),
    "blocks.{layer}.attention.queries.down": (f"{_ATTENTION}.q_a_proj",),
    "blocks.{layer}.attention.queries.norm": (f"{_ATTENTION}.q_a_layernorm",),
    "blocks.{layer}.attention.queries.up": (f"{_ATTENTION}.q_b_proj",),
    "blocks.{layer}.attention.latent": (f"{_ATTENTION}.kv_a_proj_with_mqa",),
    "blocks.{layer}.attention.latent_norm": (f"{_ATTENTION}.kv_a_layernorm",),
    "blocks.{layer}.attention.key_up.{expert}": (f"{_ATTENTION}.kv_b_proj",),
    "blocks.{layer}.attention.value_up.{expert}": (f"{_ATTENTION}.kv_b_proj",),
}
"""Latent attention, in place of query, key and value."""

FUSED: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention.qkv": (f"{_ATTENTION}.qkv_proj",),
    "blocks.{layer}.mlp.gate_up": (f"{_MLP}.gate_up_proj",),
}
"""Query, key and value in one weight, and gate and up in another."""


def prefixed(prefix: str, names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns names as a checkpoint has them in which the decoder is a part."""
    return {path: tuple(prefix + name for name in modules) for path, modules in names.items()}


def beside_images(names: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns names as a checkpoint has them in which `model` has the decoder beside what sees images."""
    return {
        path: tuple(re.sub(r"^model\.", "model.language_model.", name) for name in modules)
        for path, modules in names.items()
    }


def spelled(names: Mapping[str, tuple[str, ...]], prefixes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns names with other beginnings. prefixes: what stands for each."""

    def replaced(name: str) -> str:
        before = next(filter(name.startswith, prefixes), "")
        return prefixes.get(before, "") + name.removeprefix(before)

    return {path: tuple(map(replaced, modules)) for path, modules in names.items()}


def around(before_mlp: str, after_attention: str, after_mlp: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of the norms of NormPlace.AROUND that differ between families. Arguments: modules of
    a layer."""
    return {
        "blocks.{layer}.mlp_norm": (f"{_LAYER}.{before_mlp}",),
        "blocks.{layer}.attention_output_norm": (f"{_LAYER}.{after_attention}",),
        "blocks.{layer}.mlp_output_norm": (f"{_LAYER}.{after_mlp}",),
    }


AFTER: dict[str, tuple[str, ...]] = {
    "blocks.{layer}.attention_output_norm": (f"{_LAYER}.post_attention_layernorm",),
    "blocks.{layer}.mlp_output_norm": (f"{_LAYER}.post_feedforward_layernorm",),
}
"""The norms of NormPlace.AFTER."""


def expert_names(
    module: str, router: str, gate: str, up: str, down: str, correction: str = ""
) -> dict[str, tuple[str, ...]]:
    """Returns the names of a mixture of experts with a module per expert. module: of a layer. router: in it.
    gate, up, down: in it, `experts`, and a number. correction: the name of a tensor in it; empty: none."""
    part = f"{_LAYER}.{module}"
    return {
        "blocks.{layer}.mlp.router": (f"{part}.{router}", *([f"{part}.{correction}"] if correction else ())),
        "blocks.{layer}.mlp.expert_gate_up": tuple(
            f"{part}.experts.{{expert}}.{name}" for name in (gate, up)
        ),
        "blocks.{layer}.mlp.expert_down": (f"{part}.experts.{{expert}}.{down}",),
    }


def stacked_names(gate_up: str, down: str, *biases: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of experts whose weights are one tensor each. Arguments: tensors of a layer; the
    biases of gate_up and of down, where there are any."""
    gate_up_bias, down_bias = ((f"{_LAYER}.{name}",) for name in biases) if biases else ((), ())
    return {
        "blocks.{layer}.mlp.expert_gate_up": (f"{_LAYER}.{gate_up}", *gate_up_bias),
        "blocks.{layer}.mlp.expert_down": (f"{_LAYER}.{down}", *down_bias),
    }


def shared_names(module: str) -> dict[str, tuple[str, ...]]:
    """Returns the names of the experts that all tokens have. module: of a layer."""
    part = f"{_LAYER}.{module}"
    return {
        "blocks.{layer}.mlp.shared.gate_up": (f"{part}.gate_proj", f"{part}.up_proj"),
        "blocks.{layer}.mlp.shared.down": (f"{part}.down_proj",),
    }


EXPERTS = expert_names("mlp", "gate", "gate_proj", "up_proj", "down_proj")
STACKED = stacked_names("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""As transformers writes Qwen's, and as its models hold them."""
