"""The model families, by the names that config.json gives under `architectures`: those of
worker.config.registry, which has how their files are read."""

from worker.models.base import Family
from worker.models.gpt2 import GPT2
from worker.models.llama import LLAMA
from worker.models.mistral import MISTRAL
from worker.models.opt import OPT
from worker.models.qwen2 import QWEN2
from worker.models.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "OPTForCausalLM": OPT,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
}
