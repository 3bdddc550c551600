"""Models of the GPU benchmarks: shapes that are served much, and what a step of them must read and compute.

A folder with config.json and a made-up tokenizer is all that a service needs with --load-format dummy:
weights are drawn on the device.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.versus.models import write_tokenizer
from benchmarks.versus.roof import shape_of

CONTEXT = 8192
COMMON = {
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": CONTEXT,
    "rope_theta": 500000.0,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rms_norm_eps": 1e-6}
YOUTU = {"architectures": ["YoutuForCausalLM"], "model_type": "youtu", "rms_norm_eps": 1e-6}
SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class Shape:
    """A decoder with gated feed-forward layers, by its config.json."""

    config: dict[str, Any]

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return int(self.config["vocab_size"])

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight, a key or a value."""
        return 4 if self.config["torch_dtype"] == "float32" else 2

    @property
    def parameters(self) -> int:
        """Weights that a token is multiplied with: layers and head, not the lookup."""
        shape, routers = shape_of(self.config), self.config.get("num_experts", 0) * self.config["hidden_size"]
        return shape.body + shape.head + shape.layers * int(routers)

    def parameters_read(self, batch: int) -> float:
        """Weights that a decode step of so many rows reads: of experts those that some row has, were each
        chosen as often as any other."""
        config = self.config
        if not (experts := config.get("num_experts", 0)):
            return self.parameters
        top_k, weights = (
            config["num_experts_per_tok"],
            3 * config["hidden_size"] * config["intermediate_size"],
        )
        chosen = experts * (1 - (1 - top_k / experts) ** batch)
        return float(self.parameters + config["num_hidden_layers"] * (chosen - top_k) * weights)

    @property
    def kv_bytes(self) -> int:
        """Bytes that all layers keep of a token."""
        config = self.config
        if "kv_lora_rank" in config:
            values = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        else:
            head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            values = 2 * config["num_key_value_heads"] * head_dim
        return int(config["num_hidden_layers"] * values * self.value_bytes)

    def decode_bytes(self, batch: int, context: float) -> float:
        """Bytes that a step reads at least: weights that it needs once, and each row's keys and values."""
        return self.parameters_read(batch) * self.value_bytes + batch * context * self.kv_bytes

    def prefill_flops(self, tokens: int) -> float:
        """Floating-point operations of a prompt alone: the layers for all tokens, causal attention, the head
        for the last."""
        shape = shape_of(self.config)
        attention = 2.0 * tokens**2 * shape.attention * shape.layers
        return 2.0 * tokens * (self.parameters - shape.head) + attention + 2.0 * shape.head

    def write(self, folder: Path) -> None:
        """Writes config and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1) + "\n")
        write_tokenizer(folder, self.vocab, CONTEXT)


def _shape(family: dict[str, Any], sizes: tuple[int, ...], tied: bool, **more: Any) -> Shape:
    """sizes: by SIZES."""
    config = dict(zip(SIZES, sizes, strict=True)) | {"tie_word_embeddings": tied}
    return Shape(COMMON | family | config | more)


def _experts(sizes: tuple[int, ...], tied: bool, **more: Any) -> Shape:
    """Of sizes the intermediate one is the width of an expert."""
    return _shape(QWEN3_MOE, sizes, tied, moe_intermediate_size=sizes[2], norm_topk_prob=True, **more)


def _latents(
    sizes: tuple[int, ...], ranks: tuple[int, int], heads: tuple[int, int, int], **more: Any
) -> Shape:
    """ranks: of queries and latents. heads: values of a head's query that are not rotated, that are, and of
    its value."""
    plain, rotary, value = heads
    keys = {"q_lora_rank": ranks[0], "kv_lora_rank": ranks[1], "head_dim": rotary, "v_head_dim": value}
    keys |= {"qk_nope_head_dim": plain, "qk_rope_head_dim": rotary, "qk_head_dim": plain + rotary}
    return _shape(YOUTU, sizes, True, **keys, **more)


TINY = {"torch_dtype": "float32"}
SHAPES = {
    "8B": _shape(LLAMA, (32, 4096, 14336, 32, 8, 128256), False),  # Llama-3-8B
    "1.5B": _shape(QWEN2, (28, 1536, 8960, 12, 2, 151936), True),  # Qwen2.5
    "0.5B": _shape(QWEN2, (24, 896, 4864, 14, 2, 151936), True),
    "experts": _experts(  # 8 of 48 layers of Qwen3-30B-A3B
        (8, 2048, 768, 32, 4, 151936), False, head_dim=128, num_experts=128, num_experts_per_tok=8
    ),
    "latents": _latents((32, 2048, 6144, 16, 16, 128256), (1536, 512), (128, 64, 128)),  # Youtu-LLM-2B
    "tiny": _shape(LLAMA, (2, 64, 128, 4, 2, 512), True, **TINY),
    "tiny experts": _experts(
        (1, 64, 32, 4, 2, 512), True, head_dim=16, num_experts=8, num_experts_per_tok=2, **TINY
    ),
    "tiny latents": _latents((1, 64, 96, 4, 4, 512), (24, 16), (8, 8, 8), **TINY),
}
