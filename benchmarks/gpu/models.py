"""Models of benchmarks/gpu/serve.py: shapes that are served much, as configurations without weights, and
what a step of them must read and compute.

A folder with config.json and a made-up tokenizer is all that our service needs with --load-format dummy,
and all that transformers needs to make the same model: weights are drawn on the device.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.versus.models import write_tokenizer

COMMON = {"hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rms_norm_eps": 1e-6}
YOUTU = {"architectures": ["YoutuForCausalLM"], "model_type": "youtu", "rms_norm_eps": 1e-6}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
CONTEXT = 8192


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with gated feed-forward layers."""

    about: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    family: dict[str, Any]
    value_bytes: int = 2

    @property
    def attention_parameters(self) -> int:
        """Of a layer's matrices around attention."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Of a layer's matrices behind it that a token is multiplied with."""
        return 3 * self.hidden * self.inner

    @property
    def layer_parameters(self) -> int:
        """Of all layers' matrices."""
        return self.layers * (self.attention_parameters + self.mlp_parameters)

    @property
    def parameters(self) -> int:
        """That a decode step multiplies with: layers and head, not the lookup."""
        return self.layer_parameters + self.vocab * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Of a token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes

    def parameters_read(self, batch: int) -> float:
        """By a decode step of so many rows."""
        return self.parameters

    def decode_bytes(self, batch: int, context: float) -> float:
        """That a step reads at least: the weights that it needs once, and each row's keys and values."""
        return self.parameters_read(batch) * self.value_bytes + batch * context * self.kv_bytes

    def decode_flops(self, batch: int) -> float:
        """In products with weights; attention is bound by its bytes."""
        return 2.0 * batch * self.parameters

    def prefill_flops(self, tokens: int) -> float:
        """Of a prompt alone: the layers for all tokens, causal attention, the head for the last."""
        attention = 2.0 * tokens**2 * self.heads * self.head_dim * self.layers
        return 2.0 * tokens * self.layer_parameters + attention + 2.0 * self.vocab * self.hidden

    def config(self) -> dict[str, Any]:
        """config.json."""
        sizes = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": CONTEXT,
            "rope_theta": 500000.0,
        }
        dtype = {"torch_dtype": "float32"} if self.value_bytes == 4 else {}
        return {**COMMON, **self.family, **sizes, **dtype, **self.more()}

    def more(self) -> dict[str, Any]:
        """What its family has besides in config.json."""
        return {}

    def write(self, folder: Path) -> None:
        """Config and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(), indent=1) + "\n")
        write_tokenizer(folder, self.vocab, CONTEXT)


@dataclass(frozen=True)
class ExpertShape(Shape):
    """With experts in place of each layer's feed-forward part. `inner` is the width of one."""

    experts: int = 0
    top_k: int = 0

    @property
    def mlp_parameters(self) -> int:
        """Of the router and of a token's experts."""
        return self.hidden * self.experts + self.top_k * self._expert_parameters

    @property
    def _expert_parameters(self) -> int:
        return 3 * self.hidden * self.inner

    def parameters_read(self, batch: int) -> float:
        """Of the experts those that some row has, were each chosen as often as any other."""
        chosen = self.experts * (1 - (1 - self.top_k / self.experts) ** batch)
        return self.parameters + self.layers * (chosen - self.top_k) * self._expert_parameters

    def more(self) -> dict[str, Any]:
        """See Shape."""
        return {
            "head_dim": self.head_dim,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.inner,
            "norm_topk_prob": True,
        }


@dataclass(frozen=True)
class LatentShape(Shape):
    """With one latent and one rotary key per token in place of keys and values. `head_dim` is what a head's
    key and value have on average."""

    query_rank: int = 0
    rank: int = 0
    rotary: int = 0
    plain: int = 0  # values of a head's query that are not rotated
    value: int = 0  # of a head

    @property
    def attention_parameters(self) -> int:
        """Of queries, down and up again; of latents and rotary keys; of all heads' keys and values; of the
        output."""
        queries = self.query_rank * (self.hidden + self.heads * (self.plain + self.rotary))
        latents = self.hidden * (self.rank + self.rotary)
        of_heads = self.rank * (self.plain + self.value) + self.value * self.hidden
        return queries + latents + self.heads * of_heads

    @property
    def kv_bytes(self) -> int:
        """Of a token in all layers."""
        return self.layers * (self.rank + self.rotary) * self.value_bytes

    def more(self) -> dict[str, Any]:
        """See Shape."""
        return {
            "q_lora_rank": self.query_rank,
            "kv_lora_rank": self.rank,
            "qk_rope_head_dim": self.rotary,
            "qk_nope_head_dim": self.plain,
            "qk_head_dim": self.plain + self.rotary,
            "v_head_dim": self.value,
            "head_dim": self.rotary,
        }


SHAPES = {
    "8B": Shape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256, False, LLAMA),
    "1.5B": Shape("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936, True, QWEN2),
    "0.5B": Shape("Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936, True, QWEN2),
    "experts": ExpertShape(
        "8 of 48 layers of Qwen3-30B-A3B",
        8, 2048, 768, 32, 4, 128, 151936, False, QWEN3_MOE, experts=128, top_k=8,
    ),
    "latents": LatentShape(
        "Youtu-LLM-2B",
        32, 2048, 6144, 16, 16, 160, 128256, True, YOUTU,
        query_rank=1536, rank=512, rotary=64, plain=128, value=128,
    ),
    "tiny": Shape("a Llama of no use", 2, 64, 128, 4, 2, 16, 512, True, LLAMA, value_bytes=4),
    "tiny experts": ExpertShape(
        "experts of no use", 1, 64, 32, 4, 2, 16, 512, True, QWEN3_MOE, value_bytes=4, experts=8, top_k=2
    ),
    "tiny latents": LatentShape(
        "latents of no use",
        1, 64, 96, 4, 4, 12, 512, True, YOUTU, value_bytes=4,
        query_rank=24, rank=16, rotary=8, plain=8, value=8,
    ),
}  # fmt: skip
