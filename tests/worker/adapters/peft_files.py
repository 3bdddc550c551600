"""Adapters for tests, written by peft, and models with the weights that peft makes of them."""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from pagewire.internal.v1 import worker_pb2
from worker.adapters.adapter import Adapter, LayerDeltas
from worker.adapters.load import load_adapter
from worker.cpu.weights import CPU, OwnBits
from worker.families.registry import read_model_config
from worker.layers.embedding import VocabEmbedding
from worker.layers.matrix import MatrixOwner, PlainMethod
from worker.models.base import LanguageModel
from worker.startup.model import load_model

MAX_BYTES = 64 << 20


def model_of(folder: Path) -> LanguageModel:
    """Returns the model in float32, not packed."""
    initialize = worker_pb2.Initialize(model_path=str(folder))
    config = read_model_config(folder)
    model, _ = load_model(
        config, initialize, CPU, lambda what, fraction: None, lambda dtype: torch.float32, OwnBits()
    )
    return model


def linear_modules(folder: Path) -> list[str]:
    """Returns transformers' names of the modules that the model in a folder takes adapters of."""
    modules = model_of(folder).target_modules
    assert modules is not None
    reference = AutoModelForCausalLM.from_pretrained(folder)
    linear = [name for name, each in reference.named_modules() if isinstance(each, torch.nn.Linear | Conv1D)]
    return [name for name in linear if modules.normal_name(name) in modules.targets]


def write_adapter(base: Path, folder: Path, merge: bool = True, std: float = 0.1, **fields: Any) -> Path:
    """Writes an adapter with random tensors, and returns its folder. merge: the folder `merged` gets the
    checkpoint with the weights that peft merges. fields: of LoraConfig."""
    from peft import LoraConfig, get_peft_model  # takes seconds

    torch.manual_seed(1)
    with warnings.catch_warnings(action="ignore"):  # of peft's calls of transformers
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**fields))
        for name, parameter in model.named_parameters():
            if re.search(r"\.(lora_|trainable_tokens_delta)", name):
                torch.nn.init.normal_(parameter, std=std)
        model.save_pretrained(folder)
        if merge:
            model.merge_and_unload().save_pretrained(folder / "merged")
    return folder


def write_virtual_tokens(base: Path, folder: Path, count: int, config: str = "PromptTuningConfig") -> Path:
    """Writes an adapter of random virtual tokens, and returns its folder. config: class of peft."""
    import peft  # takes seconds

    torch.manual_seed(count)
    with warnings.catch_warnings(action="ignore"):
        model = AutoModelForCausalLM.from_pretrained(base)
        adapted = peft.get_peft_model(
            model, getattr(peft, config)(task_type="CAUSAL_LM", num_virtual_tokens=count)
        )
        for parameter in adapted.prompt_encoder.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        adapted.save_pretrained(folder)
    return folder


def read_with_peft(base: Path, folder: Path) -> Any:
    """Returns the model with an adapter, as peft has it."""
    from peft import PeftModel

    with warnings.catch_warnings(action="ignore"):
        return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)


def load(folder: Path, model: LanguageModel, expected: bytes = b"", max_bytes: int = MAX_BYTES) -> Adapter:
    """load_adapter(), by default of any digest."""
    return load_adapter(folder, model, expected, max_bytes)


def weights_of(layer: MatrixOwner) -> torch.Tensor:
    """Returns the matrices of a layer, [N, out, in] float32."""
    return torch.stack([method.weight for method in layer.modules() if isinstance(method, PlainMethod)])


def change(layer: MatrixOwner, deltas: LayerDeltas) -> torch.Tensor:
    """Returns what an adapter adds to the matrices of a layer, [N, out, in] float32."""
    given, changes = iter(deltas), list[torch.Tensor]()
    for matrix in layer.adapted_matrices:
        total = torch.zeros(sum(matrix.parts), matrix.inputs)
        for rows, delta in zip(total.split(matrix.parts), given, strict=False):
            if delta is not None:
                rows += delta.scale * (delta.b.float() @ delta.a.float())
        changes.append(total)
    if isinstance(layer, VocabEmbedding):  # the lookup is that of the rows of the head
        head, lookup = changes
        return (head + lookup.T)[None]
    return torch.stack(changes)
