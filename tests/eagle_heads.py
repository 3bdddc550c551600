"""Heads in EAGLE-3's format, made for tiny checkpoints: of random weights, or such that drafts are right."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HEAD_DIM = 32
INNER = 80
Tensors = dict[str, torch.Tensor]


def write_head(
    folder: Path,
    target: Path,
    tokens: Sequence[int] | None = None,
    after: Sequence[int] = (1, 2, 3),
    tensors: Tensors | None = None,
    **fields: Any,
) -> Path:
    """Writes a head for a checkpoint. tokens: that it has logits for; None: all. after: see
    HeadConfig. tensors: default: random ones. fields: of config.json. Returns the folder."""
    config = json.loads((target / "config.json").read_text())
    width, vocab_size = config["hidden_size"], config["vocab_size"]
    number = vocab_size if tokens is None else len(tokens)
    tensors = dict(random_tensors(width, number, len(after)) if tensors is None else tensors)
    if tokens is not None:
        tensors["d2t"] = torch.tensor(tokens) - torch.arange(number)
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, torch.tensor(tokens), True)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    heads = width // HEAD_DIM
    written = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": INNER,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab_size,
        "draft_vocab_size": number,
        "max_position_embeddings": 2048,
        "eagle_aux_hidden_state_layer_ids": list(after),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(written | fields))
    return folder


def random_tensors(width: int, draft_vocab_size: int, layers: int, seed: int = 3) -> Tensors:
    """Weights so large that logits differ clearly."""
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw) * 0.25

    def norm() -> torch.Tensor:
        return 1 + 0.1 * torch.randn(width, generator=draw)

    layer = {
        "self_attn.q_proj": matrix(width, 2 * width),
        "self_attn.k_proj": matrix(width, 2 * width),
        "self_attn.v_proj": matrix(width, 2 * width),
        "self_attn.o_proj": matrix(width, width),
        "mlp.gate_proj": matrix(INNER, width),
        "mlp.up_proj": matrix(INNER, width),
        "mlp.down_proj": matrix(width, INNER),
        "input_layernorm": norm(),
        "hidden_norm": norm(),
        "post_attention_layernorm": norm(),
    }
    return {
        **{f"midlayer.{name}.weight": tensor for name, tensor in layer.items()},
        "fc.weight": matrix(width, layers * width),
        "norm.weight": norm(),
        "lm_head.weight": matrix(draft_vocab_size, width),
    }


def write_agreeing_pair(
    folder: Path, checkpoint: Path, noise: float, tokens: Sequence[int] | None = None
) -> tuple[Path, Path]:
    """Writes FOLDER/target and FOLDER/head, and returns both. The target is a Llama whose next token depends
    on the last one alone, but for what its layers add times `noise`; the head finds the last token by
    attention and knows what follows it."""
    target = folder / "target"
    shutil.copytree(checkpoint, target)
    weights = load_file(target / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    follows = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(4))
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = tensor * noise
    weights["lm_head.weight"] = torch.empty_like(embedding).index_copy_(0, follows, embedding)
    weights["model.norm.weight"] = torch.ones(embedding.shape[1])
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    tensors = random_tensors(embedding.shape[1], 1, 3)
    one = torch.eye(embedding.shape[1])
    for name, scale in (("q", 2.0), ("k", 2.0), ("v", 4.0)):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = torch.cat((scale * one, 0 * one), dim=1)
    tensors["midlayer.self_attn.o_proj.weight"] = one
    for name in ("fc", "midlayer.mlp.down_proj"):
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"] * 0.01
    for name in ("norm", "midlayer.input_layernorm", "midlayer.hidden_norm"):
        tensors[f"{name}.weight"] = torch.ones(embedding.shape[1])
    head = weights["lm_head.weight"]
    tensors["lm_head.weight"] = head.clone() if tokens is None else head[torch.tensor(tokens)]
    return target, write_head(folder / "head", target, tokens, tensors=tensors, norm_before_residual=True)


def drafts_of(
    tensors: Tensors, embedding: torch.Tensor, hidden: torch.Tensor, token_ids: Sequence[int], count: int
) -> list[int]:
    """Returns what a head drafts, greedy, as plain formulas say. hidden: [T - 1, layers * E], the target's
    hidden states at all positions but the last one. token_ids: [T]."""
    weight = {name.removesuffix(".weight"): tensor for name, tensor in tensors.items()}
    features = hidden @ weight["fc"].T
    following = list(token_ids[1:])
    drafts: list[int] = []
    for _ in range(count):
        normed = _normed(features, weight["midlayer.hidden_norm"])
        tokens = _normed(embedding[following], weight["midlayer.input_layernorm"])
        x = features + _attended(weight, torch.cat((tokens, normed), dim=-1))
        inner = _normed(x, weight["midlayer.post_attention_layernorm"])
        gate = torch.nn.functional.silu(inner @ weight["midlayer.mlp.gate_proj"].T)
        x = x + (gate * (inner @ weight["midlayer.mlp.up_proj"].T)) @ weight["midlayer.mlp.down_proj"].T
        logits = _normed(x[-1], weight["norm"]) @ weight["lm_head"].T
        token = int(logits.argmax())
        drafts.append(token + int(tensors["d2t"][token]) if "d2t" in tensors else token)
        features, following = torch.cat((features, x[-1:])), [*following, drafts[-1]]
    return drafts


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def _attended(weight: Tensors, x: torch.Tensor) -> torch.Tensor:
    query, key, value = (
        (x @ weight[f"midlayer.self_attn.{name}_proj"].T).view(len(x), -1, HEAD_DIM).transpose(0, 1)
        for name in "qkv"
    )
    angles = torch.arange(len(x))[:, None] * 10_000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.cat((angles, angles), dim=-1)

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.chunk(2, dim=-1)
        return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    mixed = torch.nn.functional.scaled_dot_product_attention(
        rotated(query), rotated(key), value, is_causal=True
    )
    return mixed.transpose(0, 1).flatten(1) @ weight["midlayer.self_attn.o_proj"].T
