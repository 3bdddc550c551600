"""The model families, by the names that config.json gives under `architectures`."""

from pagewire.errors import StartupError
from worker.checkpoint import WHAT, Fields
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


def find_family(fields: Fields) -> tuple[str, Family]:
    """The first architecture of a config.json that is known. Raises StartupError."""
    names = fields.texts("architectures")
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    raise StartupError(
        WHAT,
        f"config.json: architecture {', '.join(names) or 'list is empty'} is not known",
        f"known are {', '.join(FAMILIES)}",
    )
