"""compressed-tensors: checkpoints that the library itself writes stand for what the library makes of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from tests.worker.fakes import Driver
from tests.worker.weights.test_own_bits import weights_of
from worker.weights.open import open_checkpoint

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "W4A16": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "W4A16, asymmetric": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "W8A16": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    "W8A8, integers": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "W8A8, FP8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "W8A8, FP8, one scale": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
}


def parameters(weight: torch.Tensor, fields: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Scales and zero points of a weight [N, K], as calibration would choose them."""
    rows = weight.shape[0]
    strategy = fields["strategy"]
    parts = weight.view(rows, -1, fields["group_size"]) if strategy == "group" else weight[:, None]
    low, high = parts.amin(-1), parts.amax(-1)  # [N, G]
    if strategy == "tensor":
        low, high = low.min().view(1), high.max().view(1)
    steps = 448.0 if fields.get("type") == "float" else float(2 ** (fields["num_bits"] - 1) - 1)
    if fields.get("symmetric", True):
        return {"weight_scale": torch.maximum(low.abs(), high.abs()) / steps}
    scale = (high - low) / (2 ** fields["num_bits"] - 1)
    zero = (-(2 ** (fields["num_bits"] - 1)) - low / scale).round().clamp(-8, 7)
    return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


def write(
    source: Path, target: Path, form: str, fields: dict[str, Any], dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Writes a checkpoint with the library. Returns the weights that the library reads from it. dtype: of
    scales."""
    compressor = BaseCompressor.get_value_from_registry(form)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**fields), format=form)
    stored: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        meant[name] = stored[name] = weight
        if "_proj.weight" in name:
            module = name.removesuffix(".weight")
            weight = weight.to(dtype)
            packed = compressor.compress({"weight": weight, **parameters(weight, fields)}, scheme)
            del stored[name]
            stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in packed.items()}
            meant[name] = compressor.decompress(dict(packed), scheme)["weight"]
    target.mkdir()
    save_file(stored, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": fields}},
        "ignore": ["lm_head"],
    }
    (target / "config.json").write_text(json.dumps(config))
    return meant


@pytest.mark.parametrize("name", SCHEMES)
def test_as_the_library_reads_it(name: str, checkpoint: Callable[..., Path], tmp_path: Path):
    form, fields = SCHEMES[name]
    expected = write(checkpoint("llama", **SHAPE), tmp_path / "packed", form, fields)
    with open_checkpoint(tmp_path / "packed") as source:
        assert sorted(source.names()) == sorted(expected)
        for tensor, weight in expected.items():
            assert torch.equal(source.read(tensor, ()), weight.float()), tensor
            if weight.dim() == 2:
                assert torch.equal(source.read(tensor, (slice(5, 19), slice(3, 40))), weight[5:19, 3:40])
    driver = Driver(tmp_path / "packed", dtype="float32")
    sequence = driver.add([5, 100, 33], 3)[0]
    driver.run()
    assert len(sequence.output) == 3


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    "changes",
    [{}, {"symmetric": False}, {"strategy": "channel", "group_size": None}],
    ids=["groups", "asymmetric", "channels"],
)
def test_4_bits_keep_their_integers(changes: dict[str, Any], checkpoint: Callable[..., Path], tmp_path: Path):
    """With scales of 16 bits: the same values as when they are unpacked, merged as the model merges them."""
    form, fields = SCHEMES["W4A16"]
    write(checkpoint("llama", **SHAPE), tmp_path / "packed", form, fields | changes, torch.bfloat16)
    driver = Driver(tmp_path / "packed", dtype="bfloat16")
    assert driver.ready.model.quantization == "compressed-tensors-int4"
    weights = weights_of(driver)
    layer = "model.layers.0"
    with open_checkpoint(tmp_path / "packed") as source:
        for path, modules in {
            "attention.qkv": [f"self_attn.{part}_proj" for part in "qkv"],
            "attention.output": ["self_attn.o_proj"],
            "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "mlp.down": ["mlp.down_proj"],
        }.items():
            parts = [source.read(f"{layer}.{module}.weight", ()) for module in modules]
            assert torch.equal(weights.pop(f"blocks.0.{path}").values(), torch.cat(parts))
    assert not weights


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "nvfp4-pack-quantized"}, 'format is "nvfp4-pack-quantized"'),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"transform_config": {"config_groups": {"v": {}}}}, "transform_config"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], why: str, checkpoint: Callable[..., Path], tmp_path: Path
):
    folder = tmp_path / "packed"
    write(checkpoint("llama", **SHAPE), folder, *SCHEMES["W4A16"])
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match=why), open_checkpoint(folder):
        pass
