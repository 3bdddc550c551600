"""How config.json is read, by the names that it gives under `architectures`. Needs no torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError
from worker.config.gpt2 import read_gpt2_config
from worker.config.hf_config import WHAT, Fields, ModelConfig, common_fields, read_config, read_eos_token_ids
from worker.config.llama import read_llama_config
from worker.config.mistral import read_mistral_config
from worker.config.opt import read_opt_config
from worker.config.qwen2 import read_qwen2_config
from worker.config.qwen3 import read_qwen3_config

READERS: dict[str, Callable[[Fields, dict[str, Any]], ModelConfig]] = {
    "GPT2LMHeadModel": read_gpt2_config,
    "LlamaForCausalLM": read_llama_config,
    "MistralForCausalLM": read_mistral_config,
    "OPTForCausalLM": read_opt_config,
    "Qwen2ForCausalLM": read_qwen2_config,
    "Qwen3ForCausalLM": read_qwen3_config,
}


def find_architecture(fields: Fields) -> str:
    """Returns the first known architecture of a config.json. Raises StartupError."""
    names = fields.texts("architectures")
    for name in names:
        if name in READERS:
            return name
    raise StartupError(
        WHAT,
        f"config.json: architecture {', '.join(names) or 'list is empty'} is not known",
        f"known are {', '.join(READERS)}",
    )


def read_model_config(folder: Path) -> ModelConfig:
    """Reads the configuration of the model in a folder. Raises StartupError."""
    fields = read_config(folder)
    architecture = find_architecture(fields)
    eos_token_ids = read_eos_token_ids(folder, fields)
    return READERS[architecture](fields, common_fields(fields, architecture, eos_token_ids))
