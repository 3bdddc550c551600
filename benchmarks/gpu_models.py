"""Models of benchmarks/gpu_serve.py: shapes that are served much, as configurations without weights, and
what a step of them must read and compute.

A folder with config.json and a made-up tokenizer is all that our service needs with --load-format dummy,
and all that transformers needs to make the same model: weights are drawn on the device.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.models import write_tokenizer

COMMON = {"hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
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
    def layer_parameters(self) -> int:
        """Of all layers' matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def parameters(self) -> int:
        """That a decode step multiplies with: layers and head, not the lookup."""
        return self.layer_parameters + self.vocab * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Of a token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes

    def decode_bytes(self, batch: int, context: float) -> float:
        """That a step reads at least: all weights once, and each row's keys and values."""
        return self.parameters * self.value_bytes + batch * context * self.kv_bytes

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
        return {**COMMON, **self.family, **sizes, **dtype}

    def write(self, folder: Path) -> None:
        """Config and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(), indent=1) + "\n")
        write_tokenizer(folder, self.vocab, CONTEXT)


SHAPES = {
    "8B": Shape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256, False, LLAMA),
    "1.5B": Shape("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936, True, QWEN2),
    "0.5B": Shape("Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936, True, QWEN2),
    "tiny": Shape("a Llama of no use", 2, 64, 128, 4, 2, 16, 512, True, LLAMA, value_bytes=4),
}
