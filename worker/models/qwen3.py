"""Qwen3: Llama with a norm over each query and key head before the rotation."""

from functools import partial

from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, build_llama

QWEN3_NAMES = NAMES | {
    "blocks.{layer}.attention.query_norm": ("model.layers.{layer}.self_attn.q_norm",),
    "blocks.{layer}.attention.key_norm": ("model.layers.{layer}.self_attn.k_norm",),
}

QWEN3 = Family(partial(build_llama, head_norms=True), QWEN3_NAMES, UNUSED)
