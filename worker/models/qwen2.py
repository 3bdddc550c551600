"""Qwen2: Llama, with biases on query, key and value."""

from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, build_llama

QWEN2 = Family(build_llama, NAMES, UNUSED)
