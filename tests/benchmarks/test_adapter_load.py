"""What benchmarks.service.adapter_load writes and counts, on a small model."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.adapter_files import shapes_of, write_adapter
from benchmarks.service.adapter_load import gaps_between, rank_of


def test_an_adapter_has_all_projections_and_about_the_size(tmp_path: Path):
    weights = {"model.layers.0.mlp.up_proj.weight": torch.zeros(30, 20), "model.norm.weight": torch.zeros(20)}
    save_file(weights, tmp_path / "model.safetensors")
    shapes = shapes_of(tmp_path)
    assert shapes == {"model.layers.0.mlp.up_proj": (30, 20)}
    assert rank_of(shapes, 0.001) == 5 and rank_of(shapes, 1.0) == 256
    assert write_adapter(tmp_path / "adapter", shapes, 5, seed=0) == 5 * 50 * 4
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.0.mlp.up_proj"
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        f"{prefix}.lora_A.weight": (5, 20),
        f"{prefix}.lora_B.weight": (30, 5),
    }


def test_gaps_are_those_that_touch_the_load():
    times = [[0.0, 1.0, 2.5, 3.0], [0.5, 4.0]]
    assert gaps_between(times, 2.0, 2.75) == [1500.0, 500.0, 3500.0]
