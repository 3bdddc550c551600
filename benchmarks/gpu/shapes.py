"""Shapes of models that the GPU kernels are compiled for, and tensors that have them and no memory."""

from dataclasses import dataclass

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3 = torch.float8_e4m3fn
SHORT = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


@dataclass(frozen=True)
class Heads:
    """Of a model's attention."""

    query: int
    kv: int
    dim: int
    models: str

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} x {self.dim}"


LLAMA_8B = Heads(32, 8, 128, "Llama-3-8B")
GEMMA = Heads(16, 8, 256, "Gemma-2-9B")
HEADS = [
    LLAMA_8B,
    Heads(14, 2, 64, "Qwen2.5-0.5B"),
    Heads(32, 32, 80, "Phi-2"),
    Heads(32, 32, 96, "Phi-3-mini"),
    GEMMA,
    Heads(71, 1, 64, "Falcon-7B"),
]
BLOCK_SIZES = [16, 32, 64, 128, 256]


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Shape, strides and dtype, no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
