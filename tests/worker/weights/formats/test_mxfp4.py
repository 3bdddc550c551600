"""MXFP4: experts of gpt-oss in 4 bits stand for the values that the format's description says, exactly."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from tests.worker.fakes import Driver
from worker.weights.open import open_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def pack(
    experts: int, outputs: int, inputs: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random blocks and scales, and what they stand for, [N, in, out]; each value on its own."""
    generator = torch.Generator().manual_seed(seed)
    shape = experts, outputs, inputs // 32
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(122, 126, shape, generator=generator, dtype=torch.uint8)
    meant = torch.zeros(experts, inputs, outputs)
    for expert in range(experts):
        for output in range(outputs):
            for i in range(inputs):
                byte = int(blocks[expert, output, i // 32, i % 32 // 2])
                code = byte >> 4 if i % 2 else byte & 15
                value = -MAGNITUDES[code - 8] if code >= 8 else MAGNITUDES[code]
                meant[expert, i, output] = value * 2.0 ** (int(scales[expert, output, i // 32]) - 127)
    return blocks, scales, meant


@pytest.fixture(scope="module")
def packed(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint with packed experts, and one with the weights that they stand for."""
    source, folder = checkpoint("gpt_oss", **SIZES), tmp_path_factory.mktemp("mxfp4") / "packed"
    plain = folder.parent / "plain"
    for target in (folder, plain):
        shutil.copytree(source, target)
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(fields))
    stored = load_file(source / "model.safetensors")
    meant = dict(stored)
    for seed, part in enumerate(("gate_up_proj", "down_proj")):
        name = f"model.layers.0.mlp.experts.{part}"
        experts, inputs, outputs = stored.pop(name).shape
        stored[f"{name}_blocks"], stored[f"{name}_scales"], meant[name] = pack(experts, outputs, inputs, seed)
    save_file(stored, folder / "model.safetensors")
    save_file(meant, plain / "model.safetensors")
    return folder, plain


def test_values(packed: tuple[Path, Path]):
    """Every one, read as a whole and expert by expert."""
    folder, plain = packed
    expected = load_file(plain / "model.safetensors")
    with open_checkpoint(folder) as source:
        assert set(source.names()) == set(expected)
        assert source.packing() == "mxfp4"
        for name in source.names():
            assert torch.equal(source.read(name, ()), expected[name])
        name = "model.layers.0.mlp.experts.gate_up_proj"
        part = source.read(name, (slice(2, 3), slice(5, 9), slice(4, 10)))
        assert torch.equal(part, expected[name][2:3, 5:9, 4:10])


def test_served_as_what_it_stands_for(packed: tuple[Path, Path]):
    """The same logits as the unpacked checkpoint."""
    logits = []
    for folder in packed:
        driver = Driver(folder, dtype="float32")
        sequence = driver.add([5, 100, 33, 210], 3)[0]
        driver.run()
        logits.append(torch.stack(sequence.logits))
    assert torch.equal(*logits)


def test_scales_that_do_not_fit(packed: tuple[Path, Path], tmp_path: Path):
    """A start-up error that names both tensors."""
    shutil.copytree(packed[0], tmp_path / "wrong")
    path = tmp_path / "wrong" / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, path)
    with (
        pytest.raises(StartupError, match="down_proj_blocks and .*down_proj_scales"),
        open_checkpoint(path.parent),
    ):
        pass
