"""From the tensors of an adapter to deltas of layers: each tensor finds its layer, or the adapter is
refused."""

import re
from collections.abc import Mapping
from contextlib import ExitStack

import torch

from worker.adapters.adapter import AdapterError, LayerDeltas
from worker.adapters.config import AdapterConfig
from worker.adapters.deltas import Deltas, Pair
from worker.adapters.stacked import place_stacked
from worker.layers.base import Layer
from worker.layers.targets import Target, TargetModules
from worker.weights.loader import PIECE_VALUES
from worker.weights.open import open_checkpoint
from worker.weights.source import TensorSource

PREFIX = "base_model.model."
_LORA = re.compile(r"(.+?)((?:\.base_layer)*)\.lora_(embedding_)?([AB])(?(3)|\.weight)")
_REFUSED = {
    r".+\.lora_magnitude_vector(\.weight)?": "DoRA is not supported",
    r".+\.trainable_tokens_(delta|original)": "trained tokens (trainable_token_indices) are not supported",
    r".+\.lora_[AB]\.bias": "biases of adapters (lora_bias) are not supported",
    r"prompt_embeddings|prompt_encoder\..+": "it belongs to another kind of adapter",
}


def place_tensors(
    tensors: Mapping[str, torch.Tensor], config: AdapterConfig, modules: TargetModules
) -> dict[Layer, LayerDeltas]:
    """Returns the deltas of each layer. Raises AdapterError, which names the tensor."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}  # module, nesting, kind -> "A", "B" -> tensor
    others: list[str] = []
    for name in tensors:
        if match := _LORA.fullmatch(name.removeprefix(PREFIX)):
            found.setdefault((match[1], match[2], match[3] or ""), {})[match[4]] = name
        else:
            others.append(name)
    _check_others(others, tensors, modules)
    if not found:
        raise AdapterError("the adapter has no tensors lora_A and lora_B")
    deltas, stacked = Deltas(config), list[Pair]()
    taken: dict[str, str] = {}  # normal name -> module
    for (module, nesting, kind), names in found.items():
        first = next(iter(names.values()))
        if len(names) < 2:
            raise AdapterError(f"tensor {first} lacks its other half, lora_{kind}{'AB'['A' in names]}")
        pair = Pair(module, *((names[half], tensors[names[half]]) for half in "AB"))
        normal = modules.normal_name(module)
        if normal in modules.stacked and not kind:
            stacked.append(pair)
            continue
        if (key := normal + nesting + kind) in taken:
            raise AdapterError(f"tensor {first}: {module} and {taken[key]} are the same module")
        taken[key] = module
        targets = (modules.embeddings if kind else modules.targets).get(normal + nesting)
        _place(pair, targets, modules, deltas)
    place_stacked(stacked, modules, deltas)
    return {layer: tuple(parts) for layer, parts in deltas.layers.items()}


def _place(pair: Pair, targets: tuple[Target, ...] | None, modules: TargetModules, deltas: Deltas) -> None:
    """Adds the deltas of one module. targets: None: it has no linear layer. Raises AdapterError."""
    if targets is None and modules.is_unsupported(modules.normal_name(pair.module)):
        raise AdapterError(f"tensor {pair.a[0]}: adapters of {pair.module} are not supported yet")
    if targets is None:
        raise AdapterError(f"tensor {pair.a[0]}: the model has no linear layer {pair.module}")
    outputs, inputs = targets[0].shape
    name_of = deltas.name_of(pair, targets)
    rank = deltas.rank_of(pair, name_of, pair.a[1].shape[0] if pair.a[1].dim() else 0)
    for (name, tensor), shape in zip(pair.halves, ((rank, inputs), (outputs, rank)), strict=True):
        if tuple(tensor.shape) != shape:
            raise AdapterError(
                f"tensor {name} has shape {list(tensor.shape)}, not {list(shape)}: the rank is {rank}, and "
                f"the model's layer maps {inputs} values to {outputs}"
            )
    deltas.add(targets, pair, name_of, pair.a[1], pair.b[1])


def _check_others(names: list[str], tensors: Mapping[str, torch.Tensor], modules: TargetModules) -> None:
    """Raises AdapterError for a tensor that is no part of a LoRA, unless it is a copy of the base model's."""
    with ExitStack() as stack:
        stored: dict[str, str] | None = None
        for name in names:
            plain = name.removeprefix(PREFIX)
            reason = next((why for form, why in _REFUSED.items() if re.fullmatch(form, plain)), None)
            if reason is not None:
                raise AdapterError(f"tensor {name}: {reason}")
            if stored is None and modules.checkpoint is not None:
                checkpoint = stack.enter_context(open_checkpoint(modules.checkpoint))
                stored = {
                    modules.normal_name(each).removesuffix(".weight"): each for each in checkpoint.names()
                }
            own = modules.normal_name(plain.replace(".base_layer.", ".")).removesuffix(".weight")
            base = (stored or {}).get(own) or (stored or {}).get(modules.tied.get(own, own))
            if base is None:
                raise AdapterError(f"tensor {name} belongs to nothing that the model has")
            if not _is_copy(tensors[name], checkpoint, base):
                raise AdapterError(
                    f"tensor {name} differs from the model's {base}: the adapter belongs to another model, "
                    "or was trained with modules_to_save or bias, which are not supported"
                )


def _is_copy(tensor: torch.Tensor, checkpoint: TensorSource, name: str) -> bool:
    """True if a tensor has the values that the checkpoint has. Compares some rows at a time."""
    if tuple(tensor.shape) != checkpoint.shape(name) or not tensor.dim():
        return False
    step = max(1, PIECE_VALUES * len(tensor) // tensor.numel())
    return all(
        torch.equal(
            tensor[row : row + step].float(),
            checkpoint.read(name, (slice(row, min(row + step, len(tensor))),)).float(),
        )
        for row in range(0, len(tensor), step)
    )
