"""Quantized checkpoints: each stands for the weights that its format's description says, exactly."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.worker.fakes import Driver, initialize
from tests.worker.weights.formats import quantizers
from tests.worker.weights.formats.quantizers import Quantizer, quantize_checkpoint
from worker.config.hf_config import QUANT_METHODS
from worker.load import load
from worker.platforms.cpu import CpuPlatform
from worker.weights.open import FINDERS, open_checkpoint

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
PROMPT = [5, 100, 33, 210, 7, 8]
FORMATS: dict[str, tuple[Quantizer, dict[str, object]]] = {
    "GPTQ, 4 bits": (quantizers.gptq(4, 1, False), {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "GPTQ, 4 bits, act-order": (
        quantizers.gptq(4, 1, True),
        {"quant_method": "gptq", "bits": 4, "desc_act": True, "checkpoint_format": "gptq"},
    ),
    "GPTQ v2, 8 bits": (
        quantizers.gptq(8, 0, False),
        {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
    ),
    "GPTQ, 2 bits": (quantizers.gptq(2, 1, True), {"quant_method": "gptq", "bits": 2}),
    "AWQ": (quantizers.awq, {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 32}),
    "FP8, one scale": (quantizers.fp8("tensor"), {"quant_method": "fp8", "activation_scheme": "static"}),
    "FP8, a scale per output": (quantizers.fp8("channel"), {"quant_method": "fp8"}),
    "FP8, blocks": (quantizers.fp8("block"), {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "bitsandbytes, 8 bits": (
        quantizers.bitsandbytes_8,
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
    "bitsandbytes, 4 bits": (
        quantizers.bitsandbytes_4(False),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "bitsandbytes, 4 bits, nested": (
        quantizers.bitsandbytes_4(True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
}


@pytest.fixture
def llama(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama", **SHAPE)


def greedy(folder: Path) -> tuple[list[int], torch.Tensor]:
    """Tokens of one prompt in float32, and their logits."""
    driver = Driver(folder, dtype="float32")
    sequence = driver.add(PROMPT, 6)[0]
    driver.run()
    return sequence.output, torch.stack(sequence.logits)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_stands_for_its_weights(name: str, llama: Path, tmp_path: Path):
    quantizer, config = FORMATS[name]
    expected = quantize_checkpoint(llama, tmp_path / "packed", quantizer, config)
    with open_checkpoint(tmp_path / "packed") as source:
        assert sorted(source.names()) == sorted(expected)
        for tensor, weight in expected.items():
            assert torch.equal(source.read(tensor, ()), weight), tensor
            assert source.shape(tensor) == weight.shape
            if weight.dim() == 2:
                assert torch.equal(source.read(tensor, (slice(5, 19),)), weight[5:19])
                assert torch.equal(source.read(tensor, (slice(8, 9), slice(3, 40))), weight[8:9, 3:40])
    (tmp_path / "plain").mkdir()
    save_file(expected, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_bytes((llama / "config.json").read_bytes())
    ours, plain = greedy(tmp_path / "packed"), greedy(tmp_path / "plain")
    assert ours[0] == plain[0]
    assert torch.equal(ours[1], plain[1])


def test_every_method_has_a_reader():
    assert tuple(sorted(FINDERS)) == QUANT_METHODS


def refusal(folder: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load(initialize(folder), CpuPlatform(WorkerConfig(threads=1)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"quant_method": "exl3"}, 'quant_method is "exl3", but only these are known: awq'),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3, but only (2, 4, 8)"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, 'checkpoint_format is "marlin"'),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, 'version is "gemv"'),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is [128]"),
        ({"bits": 4}, "quant_method"),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_known(config: dict[str, object], why: str, llama: Path, tmp_path: Path):
    quantize_checkpoint(llama, tmp_path / "packed", quantizers.gptq(4, 1, False), config)
    assert why in refusal(tmp_path / "packed")


def test_a_part_that_is_missing_or_has_another_shape(llama: Path, tmp_path: Path):
    folder = tmp_path / "packed"
    quantize_checkpoint(llama, folder, *FORMATS["GPTQ, 4 bits"])
    tensors = load_file(folder / "model.safetensors")
    module = "model.layers.0.mlp.up_proj"
    for change, why in (
        ({f"{module}.scales": tensors[f"{module}.scales"][:, :-1]}, f"{module}.scales"),
        ({f"{module}.qzeros": tensors[f"{module}.qzeros"][:1]}, f"{module}.qzeros"),
        ({f"{module}.g_idx": tensors[f"{module}.g_idx"] + 9}, f"{module}.g_idx names a group"),
        ({f"{module}.scales": tensors[f"{module}.scales"] * float("nan")}, f"{module}.weight"),
    ):
        changed = {**tensors, **{name: tensor.contiguous() for name, tensor in change.items()}}
        save_file(changed, folder / "model.safetensors")
        assert why in refusal(folder)


def test_a_last_group_with_fewer_inputs(llama: Path, tmp_path: Path):
    """Of 96 inputs in groups of 64; the configuration says so, or nothing can tell."""
    module, folder = "model.layers.0.mlp.down_proj", tmp_path / "packed"
    quantize_checkpoint(llama, folder, *FORMATS["AWQ"])
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("scales", "qzeros")):
            tensors[name] = tensor[: -(-len(tensor) // 2)].clone()
    save_file(tensors, folder / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text())

    def say(group_size: int | None) -> None:
        fields["quantization_config"]["group_size"] = group_size
        (folder / "config.json").write_text(json.dumps(fields))

    say(64)
    with open_checkpoint(folder) as source:
        weight = source.read(f"{module}.weight", ())
    scales = tensors[f"{module}.scales"].float()
    for column, group in ((0, 0), (63, 0), (64, 1), (95, 1)):
        quotient = weight[:, column] / scales[group]
        assert torch.allclose(quotient, quotient.round(), atol=1e-3)
    say(32)
    assert f"{module} has 2 groups of inputs, of which there are 96, but" in refusal(folder)


def test_integers_without_a_configuration(llama: Path, tmp_path: Path):
    folder = tmp_path / "packed"
    quantize_checkpoint(llama, folder, quantizers.bitsandbytes_8, {"quant_method": "bitsandbytes"})
    fields = json.loads((folder / "config.json").read_text())
    del fields["quantization_config"]
    (folder / "config.json").write_text(json.dumps(fields))
    assert "SCB" in refusal(folder) or "I8" in refusal(folder)
