"""GGUF files for tests, written by the `gguf` package from the checkpoints of tests.checkpoints.

write_gguf(folder, path)                       # float32, as converters write the family
write_gguf(folder, path, {"attn_q": "Q8_0"})   # types by module; others as they are
"""

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

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
}


def write_gguf(
    folder: Path, path: Path, types: Mapping[str, str] | None = None, **metadata: int | float | str
) -> Path:
    """Writes a checkpoint of Llama, Qwen 2 or Qwen 3 with its tokenizer as one file.

    types: type by module's name in GGUF. metadata: further entries, with __ in place of dots.
    """
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
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
    for key, value in metadata.items():
        name = key.replace("__", ".")
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(name, value)
    _add_tokenizer(writer, folder)
    for name, values in load_file(folder / "model.safetensors").items():
        _add_tensor(writer, name, values, types or {}, {"attn_q": heads, "attn_k": kv_heads}, family)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    packed = gguf.quantize(values, wanted) if values.ndim > 1 else values
    writer.add_tensor(f"{layer}{module}.{kind}", packed, raw_dtype=wanted if values.ndim > 1 else None)


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
