"""Adapters (LoRA) of random numbers, as peft writes them, for a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SUFFIX = "_proj.weight"
Shapes = Mapping[str, tuple[int, int]]


def shapes_of(model: Path) -> Shapes:
    """Returns outputs and inputs of each projection of a checkpoint, by the name of its module."""
    shapes = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if name.endswith(SUFFIX):
                    rows, columns = file.get_slice(name).get_shape()
                    shapes[name.removesuffix(".weight")] = rows, columns
    if not shapes:
        raise SystemExit(f"{model}: no tensor is named *{SUFFIX}")
    return shapes


def write_adapter(
    folder: Path, shapes: Shapes, rank: int, seed: int, dtype: torch.dtype = torch.float32
) -> int:
    """Writes an adapter of all projections, and returns the bytes of its tensors."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns) in shapes.items():
        for part, shape, size in (("A", (rank, columns), columns), ("B", (rows, rank), rank)):
            values = torch.randn(shape, generator=random) / size
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = values.to(dtype)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in shapes}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in tensors.values())
