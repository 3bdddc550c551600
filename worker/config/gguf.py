"""The configuration in a GGUF file's metadata, under the names of config.json.

A metadata key of the family that is not known may change results: it is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError
from pagewire.gguf.header import Header, TokenType, read_floats, read_header

WHAT = "cannot load the model's configuration"
ROPE_FACTORS = "rope_freqs.weight"
"""A tensor of divisors of the rotary frequencies."""

_PLAIN = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Key behind the family's name -> field of config.json."""
_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
"""The same, of families with experts."""
_SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_HARMLESS = frozenset(
    {"rope.scaling.finetuned", "vocab_size", "rope.dimension_count", "attention.value_length"}
)
"""Not copied: said elsewhere, or compared below."""
_NEUTRAL = {"rope.scaling.attn_factor": 1.0}
"""Keys with the one value that changes nothing."""
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_TEXTS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endoftext|>"}
)
"""Control tokens that end a turn or a text where a vocabulary has them; most files name one of them only."""


@dataclass(frozen=True)
class GGUFFamily:
    """How a value of `general.architecture` is read."""

    architecture: str  # of config.json
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of config.json that GGUF leaves out
    rotary_pairs: bool = False
    """True if rows of queries and keys are ordered so that neighbours rotate together."""
    names: Mapping[str, str] = field(default_factory=lambda: _PLAIN)


GGUF_FAMILIES = {
    "llama": GGUFFamily("LlamaForCausalLM", rotary_pairs=True),
    "qwen2": GGUFFamily("Qwen2ForCausalLM"),
    "qwen3": GGUFFamily("Qwen3ForCausalLM"),
    "qwen3moe": GGUFFamily("Qwen3MoeForCausalLM", {"norm_topk_prob": True}, names=_PLAIN | _EXPERTS),
}
"""By `general.architecture`. Mistral's files say llama."""


def find_family(header: Header) -> GGUFFamily:
    """Returns the family of a file. Raises StartupError."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_FAMILIES:
        raise StartupError(
            WHAT,
            f"{header.path.name}: general.architecture {name!r} is not known",
            f"known are {', '.join(GGUF_FAMILIES)}",
        )
    return GGUF_FAMILIES[name]


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Returns the fields of config.json that a GGUF file stands for. Raises StartupError."""
    header = read_header(path)
    family = find_family(header)
    metadata, prefix = header.metadata, f"{header.metadata['general.architecture']}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    names = family.names
    _refuse_unknown(header, prefix, own, names)
    values: dict[str, Any] = {names[key]: value for key, value in own.items() if key in names}
    values |= {"architectures": [family.architecture], **family.extra}
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise StartupError(WHAT, f"{path.name} lacks tensor token_embd.weight")
    values["vocab_size"] = embedding.shape[0]
    values["tie_word_embeddings"] = "output.weight" not in header.tensors
    values["attention_bias"] = "blk.0.attn_output.bias" in header.tensors
    values["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    values["eos_token_id"] = [
        metadata[key] for name in _END_TOKENS if (key := f"tokenizer.ggml.{name}") in metadata
    ] + _ends_by_text(metadata)
    _check_head_sizes(header, own, values)
    rope = _read_rope(header, own)
    if rope is not None:
        values["rope_parameters"] = {**rope, "rope_theta": values.pop("rope_theta", 10_000.0)}
    return values


def _ends_by_text(metadata: Mapping[str, Any]) -> list[int]:
    texts, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if not isinstance(texts, list) or types is None or len(types) != len(texts):
        return []  # the tokenizer's reader says what is wrong
    return [
        token for token, text in enumerate(texts) if text in _END_TEXTS and types[token] == TokenType.CONTROL
    ]


def _refuse_unknown(header: Header, prefix: str, own: Mapping[str, Any], names: Mapping[str, str]) -> None:
    for key, value in own.items():
        is_known = key in names or key in _SCALING or key in _HARMLESS
        if not is_known and value and value != _NEUTRAL.get(key):
            raise StartupError(
                WHAT, f"{header.path.name}: {prefix}{key} is {value!r}, a field that is not known here"
            )
        if not isinstance(value, int | float | str):
            raise StartupError(WHAT, f"{header.path.name}: {prefix}{key} is an array, not one value")


def _check_head_sizes(header: Header, own: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Keys, values and rotary positions must have one size."""
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        return  # reading the fields says what is wrong with them
    head_dim = values.get("head_dim", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, head_dim) != head_dim:
            raise StartupError(
                WHAT, f"{header.path.name}: {key} is {own[key]}, but the head size is {head_dim}"
            )


def _read_rope(header: Header, own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns rope_parameters without the base; None where nothing is scaled."""
    scaling = {_SCALING[key]: value for key, value in own.items() if key in _SCALING}
    if scaling.get("factor"):
        scaling.setdefault("rope_type", "linear")  # where a file does not say
    is_scaled = scaling.get("rope_type", "none") != "none"
    if ROPE_FACTORS not in header.tensors:
        return scaling if is_scaled else None
    if is_scaled:
        raise StartupError(
            WHAT, f"{header.path.name}: rope.scaling.type and {ROPE_FACTORS} scale the same frequencies"
        )
    return {"rope_type": "divided", "divisors": read_floats(header, ROPE_FACTORS)}
