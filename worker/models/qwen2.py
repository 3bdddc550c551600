"""Qwen2: Llama, with biases on query, key and value."""

from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, LlamaModel

QWEN2 = Family(LlamaModel, NAMES, UNUSED)
