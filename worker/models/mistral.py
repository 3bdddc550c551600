"""Mistral: Llama, with a sliding window where the file gives one."""

from worker.models.base import Family
from worker.models.llama import NAMES, UNUSED, build_llama

MISTRAL = Family(build_llama, NAMES, UNUSED)
