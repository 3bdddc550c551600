"""GGUF files for tests, written by the `gguf` package from the checkpoints of tests.checkpoints.

write_gguf(folder, path)                       # float32, as converters write the family
write_gguf(folder, path, {"attn_q": "Q8_0"})   # types by module; others as they are

The package rounds to some types only. Of the others, a tensor has random blocks.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from pagewire.gguf.tensor_types import TENSOR_TYPES, TensorType

MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
FAMILY_NAMES = {"qwen3_moe": "qwen3moe"}
"""`model_type` -> `general.architecture`, where they differ."""
HALVES = (
    dict.fromkeys(("Q6_K",), (208,))
    | dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
    | {"Q2_K": (80, 82), "Q3_K": (108,), "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "IQ1_M": ()}
)
"""Where blocks have numbers of 16 bits, if not in front: random ones would be NaN now and then."""


def random_blocks(tensor_type: TensorType, count: int, seed: int = 0) -> np.ndarray:
    """[count, bytes of a block] uint8: any integers, small finite scales."""
    rng = np.random.default_rng(seed + tensor_type.block_bytes)
    blocks = rng.integers(0, 256, (count, tensor_type.block_bytes), dtype=np.uint8)
    for first in HALVES.get(tensor_type.name, (0,)):
        scales = rng.normal(scale=0.01, size=(count, 1)).astype(np.float16)
        blocks[:, first : first + 2] = scales.view(np.uint8)
    if tensor_type.name == "MXFP4":  # an exponent of 2
        blocks[:, 0] = rng.integers(112, 120, count)
    if tensor_type.name == "IQ1_M":  # its number is in four pieces; this one has sign and exponent
        blocks[:, 55] = blocks[:, 55] & 15 | 32
    return blocks


def write_gguf(
    folder: Path, path: Path, types: Mapping[str, str] | None = None, **metadata: int | float | str
) -> Path:
    """Writes a checkpoint of Llama, Qwen 2, Qwen 3 or Qwen 3 MoE with its tokenizer as one file.

    types: type by module's name in GGUF. metadata: further entries, with __ in place of dots.
    """
    config = json.loads((folder / "config.json").read_text())
    family = FAMILY_NAMES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, family)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    for key, value in metadata.items():
        name = key.replace("__", ".")
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(name, value)
    _add_tokenizer(writer, folder)
    for name, values in _with_all_experts(load_file(folder / "model.safetensors")).items():
        _add_tensor(writer, name, values, types or {}, {"attn_q": heads, "attn_k": kv_heads}, family)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _with_all_experts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacks the tensors of a layer's experts: [experts, out, in]."""
    found: dict[str, list[np.ndarray]] = {}
    for name in sorted(tensors, key=lambda name: [int(each) for each in re.findall(r"\d+", name)]):
        found.setdefault(re.sub(r"experts\.\d+", "experts", name), []).append(tensors[name])
    return {name: np.stack(each) if ".experts." in name else each[0] for name, each in found.items()}


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: np.ndarray,
    types: Mapping[str, str],
    heads: Mapping[str, int],
    family: str,
) -> None:
    module, _, kind = name.rpartition(".")
    layer = ""
    if module.startswith("model.layers."):
        number, _, module = module.removeprefix("model.layers.").partition(".")
        layer = f"blk.{number}."
    module = MODULES[module]
    if family == "llama" and module in heads:  # neighbours rotate together
        halves = values.reshape(heads[module], 2, -1, *values.shape[1:])
        values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    wanted = getattr(gguf.GGMLQuantizationType, types.get(module, "F32"))
    packed = _packed(values, wanted) if values.ndim > 1 else values
    writer.add_tensor(f"{layer}{module}.{kind}", packed, raw_dtype=wanted if values.ndim > 1 else None)


def _packed(values: np.ndarray, wanted: gguf.GGMLQuantizationType) -> np.ndarray:
    try:
        return gguf.quantize(values, wanted)
    except NotImplementedError:
        tensor_type = TENSOR_TYPES[wanted]
        blocks = random_blocks(tensor_type, values.size // tensor_type.block_values)
        return blocks.reshape(*values.shape[:-1], -1)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    special = {added["content"] for added in tokenizer["added_tokens"]}
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
