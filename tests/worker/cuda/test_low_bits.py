"""Quantized weights on the CUDA path: what a checkpoint stores is held, and computed with."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kernels.api import LowBitWeight
from pagewire.errors import StartupError
from tests.worker.cuda.host_devices import GIB, SMALL, host_device, interpret, load_on_the_host, model_on
from tests.worker.fakes import Driver, initialize
from tests.worker.weights.formats import quantizers
from tests.worker.weights.formats.quantizers import Quantizer, quantize_checkpoint
from tests.worker.weights.formats.test_mxfp4 import SIZES as MXFP4_SIZES
from tests.worker.weights.formats.test_mxfp4 import write_mxfp4
from worker.cuda.device import HostDevice, Memory
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.matrix import LowBitMethod, Matrix
from worker.platforms.cuda import LoadedOnCuda

Checkpoints = Callable[..., Path]
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
PROMPT = [3 + 7 * i % 200 for i in range(5)]
GPTQ: dict[str, object] = {"quant_method": "gptq", "bits": 4}
FP8: dict[str, object] = {"quant_method": "fp8"}
INT8: dict[str, object] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "targets": ["Linear"],
        }
    },
}
HELD: dict[str, tuple[Quantizer, dict[str, object]]] = {
    "gptq-int4": (quantizers.gptq(4, 1, False), GPTQ),
    "awq-int4": (quantizers.awq, {"quant_method": "awq", "bits": 4}),
    "fp8-e4m3": (quantizers.fp8("channel"), FP8),
    "fp8-e4m3, blocks": (quantizers.fp8("block", 64), FP8 | {"weight_block_size": [64, 64]}),
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch)


def loaded(folder: Path, **changes: Any) -> LoadedOnCuda:
    command = initialize(folder, **{**SMALL, "dtype": "bfloat16", **changes})
    return model_on(host_device(), command)


def held_in(model: LoadedOnCuda) -> dict[str, str]:
    """The code of each matrix that is held in few bits."""
    return {path: weight.code.name for path, weight in low_bits_of(model).items()}


def low_bits_of(model: LoadedOnCuda) -> dict[str, LowBitWeight]:
    parts = {path: part for path, part in model.model.named_modules() if isinstance(part, Matrix)}
    methods = {path: part.method for path, part in parts.items()}
    return {path: each.weight for path, each in methods.items() if isinstance(each, LowBitMethod)}


def logits(folder: Path) -> torch.Tensor:
    """Of the token behind a prompt."""
    driver = Driver(folder, loader=load_on_the_host, **{**SMALL, "dtype": "bfloat16"})
    sequence = driver.add(PROMPT, 1)[0]
    driver.run()
    return sequence.logits[0]


@pytest.mark.parametrize("name", HELD)
def test_what_a_checkpoint_holds(name: str, checkpoint: Checkpoints, tmp_path: Path):
    """Its own values, merged as the model merges them; no matrix of the layers is in 16 bits. With them a
    step has the bits that it has with the unpacked weights."""
    source = checkpoint("llama", **SHAPE)
    quantizer, config = HELD[name]
    meant = quantize_checkpoint(source, tmp_path / "packed", quantizer, config)
    plain = tmp_path / "plain"
    plain.mkdir()
    save_file({key: value.contiguous() for key, value in meant.items()}, plain / "model.safetensors")
    (plain / "config.json").write_bytes((source / "config.json").read_bytes())
    model, unpacked = loaded(tmp_path / "packed"), loaded(plain)
    assert model.quantization == name.split(",")[0]
    assert len(held_in(model)) == 4 and not held_in(unpacked)
    assert model.weight_bytes < unpacked.weight_bytes
    others = dict(unpacked.model.named_modules())
    for path, held in low_bits_of(model).items():
        assert torch.equal(held.values().bfloat16(), others[path].weight)
    if name == "gptq-int4":
        assert torch.equal(logits(tmp_path / "packed"), logits(plain))


@pytest.mark.parametrize(("quantization", "code"), [("int4-g32", "INT4"), ("int8", "INT8")])
def test_weights_that_are_rounded(quantization: str, code: str, checkpoint: Checkpoints, tmp_path: Path):
    """Matrices hold values near those of the checkpoint."""
    folder = checkpoint("llama", **SHAPE)
    model, plain = loaded(folder, quantization=quantization), loaded(folder)
    assert set(held_in(model).values()) == {code} and model.quantization == quantization
    others = dict(plain.model.named_modules())
    for path, held in low_bits_of(model).items():
        weight = others[path].weight.float()
        assert (held.values() - weight).norm() < (0.1 if code == "INT4" else 0.01) * weight.norm()


def test_inputs_that_are_stored_first(checkpoint: Checkpoints):
    """GPT-2 stores [in, out]; rows are rounded as those of any other weight."""
    folder = checkpoint("gpt2", n_layer=1, n_positions=96)
    model, plain = loaded(folder, quantization="int8"), loaded(folder)
    others = dict(plain.model.named_modules())
    for path, held in low_bits_of(model).items():
        weight = others[path].weight.float()
        assert (held.values() - weight).norm() < 0.02 * weight.norm()


def test_random_weights(checkpoint: Checkpoints):
    """--load-format dummy makes them in the form that is asked for."""
    model = loaded(checkpoint("llama", **SHAPE), load_format="dummy", quantization="int4-g32")
    assert set(held_in(model).values()) == {"INT4"}
    assert all(not parameter.is_meta for parameter in model.model.parameters())


def test_what_is_unpacked(checkpoint: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """In float32, and in groups that no kernel has: one line says so."""
    folder = tmp_path / "packed"
    quantize_checkpoint(checkpoint("llama", **SHAPE), folder, quantizers.gptq(4, 1, False, 16), GPTQ)
    for dtype, why in (("float32", "the dtype is float32"), ("bfloat16", "groups of 16 inputs")):
        with caplog.at_level(logging.WARNING):
            assert loaded(folder, dtype=dtype).quantization == ""
        assert why in caplog.text


def test_what_is_refused(checkpoint: Checkpoints, tmp_path: Path):
    """Rounding in float32, and rounding what is rounded; weights that do not fit are counted as they will be
    held."""
    folder = checkpoint("llama", **SHAPE)
    with pytest.raises(StartupError, match="the dtype is float32") as error:
        loaded(folder, dtype="float32", quantization="int8")
    assert "--dtype bfloat16" in error.value.todo
    quantize_checkpoint(folder, tmp_path / "packed", quantizers.gptq(4, 1, False), GPTQ)
    with pytest.raises(StartupError, match="quantized already"):
        loaded(tmp_path / "packed", quantization="int4-g32")
    for quantization, fits in (("", False), ("int4-g32", True)):
        command = initialize(folder, **{**SMALL, "dtype": "bfloat16", "quantization": quantization})
        room = loaded(folder).weight_bytes - 1000
        small = HostDevice(Memory(GIB, room))
        small_command = small, command
        if fits:
            command.gpu_memory_utilization = 1.0
            assert model_on(*small_command).weight_bytes < room
        else:
            with pytest.raises(StartupError, match="the weights take"):
                model_on(*small_command)


def test_what_the_configuration_says_is_read(checkpoint: Checkpoints, tmp_path: Path):
    """A checkpoint of int8 (compressed-tensors) keeps its integers."""
    folder = tmp_path / "packed"
    meant = quantize_checkpoint(checkpoint("llama", **SHAPE), folder, int8, INT8)
    model = loaded(folder)
    assert model.quantization == "compressed-tensors-int8" and len(held_in(model)) == 4
    held = low_bits_of(model)["blocks.0.mlp.down"]
    assert torch.equal(held.values(), meant["model.layers.0.mlp.down_proj.weight"])
    assert json.loads((folder / "config.json").read_text())["quantization_config"] == INT8


def int8(module: str, weight: np.ndarray) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """A tests.worker.weights.formats.quantizers.Quantizer, with a scale for each output."""
    values = torch.from_numpy(weight)
    scales = values.abs().amax(-1, keepdim=True) / 127
    integers = (values / scales).round().to(torch.int8)
    stored = {f"{module}.weight": integers, f"{module}.weight_scale": scales}
    return stored, (integers * scales).numpy()


EXPERTS = SHAPE | {"num_experts": 3, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
HELD_EXPERTS = {**HELD, "compressed-tensors-int8": (int8, INT8)}
WITH_LOGITS = ("gptq-int4", "fp8-e4m3, blocks")


def quantized_experts(source: Path, folder: Path, quantizer: Quantizer, config: dict[str, object]) -> None:
    """Writes the checkpoint `packed`, and `plain` with the values that it stands for."""
    meant = quantize_checkpoint(source, folder / "packed", quantizer, config)
    plain = folder / "plain"
    plain.mkdir()
    save_file({key: value.contiguous() for key, value in meant.items()}, plain / "model.safetensors")
    (plain / "config.json").write_bytes((source / "config.json").read_bytes())


def experts_of(model: LoadedOnCuda) -> dict[str, ExpertMatrices]:
    parts = model.model.named_modules()
    return {path: part for path, part in parts if isinstance(part, ExpertMatrices)}


def assert_same_experts(packed: LoadedOnCuda, plain: LoadedOnCuda, code: str) -> None:
    """What is held stands for the plain weights, expert by expert, and no expert is in 16 bits."""
    others = experts_of(plain)
    for path, part in experts_of(packed).items():
        low_bits, stacked = part.stacked, others[path].stacked
        assert isinstance(low_bits, LowBitWeight) and low_bits.code.name == code
        assert isinstance(stacked, torch.Tensor) and torch.equal(low_bits.values().bfloat16(), stacked)
    assert packed.weight_bytes < plain.weight_bytes


@pytest.mark.parametrize("name", HELD_EXPERTS)
def test_experts(name: str, checkpoint: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Hold the checkpoint's own values, and a step has the bits of the unpacked checkpoint."""
    quantized_experts(checkpoint("qwen3_moe", **EXPERTS), tmp_path, *HELD_EXPERTS[name])
    with caplog.at_level(logging.WARNING):
        packed = loaded(tmp_path / "packed")
    kind = name.split(",")[0]
    assert not caplog.text and packed.quantization == kind
    assert_same_experts(packed, loaded(tmp_path / "plain"), kind.rpartition("-")[2].upper())
    if name in WITH_LOGITS:
        assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "plain"))


def test_experts_in_floats_of_4_bits(checkpoint: Checkpoints, tmp_path: Path):
    """As gpt-oss stores them: one tensor for all, gates and ups in turns, with biases."""
    packed, plain = write_mxfp4(checkpoint("gpt_oss", **MXFP4_SIZES), tmp_path)
    model = loaded(packed)
    assert model.quantization == "mxfp4-e2m1"
    assert_same_experts(model, loaded(plain), "E2M1")
    assert torch.equal(logits(packed), logits(plain))


def test_experts_that_are_unpacked(checkpoint: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Each with an order of inputs of its own: one line says so. What is rounded leaves experts as they
    are."""
    source = checkpoint("qwen3_moe", **EXPERTS)
    act_order: dict[str, object] = GPTQ | {"desc_act": True}
    quantized_experts(source, tmp_path, quantizers.gptq(4, 1, True), act_order)
    with caplog.at_level(logging.WARNING):
        model = loaded(tmp_path / "packed")
    assert "unpacked to bfloat16" in caplog.text and "which differ between experts" in caplog.text
    assert set(held_in(model)) == {"blocks.0.attention.qkv", "blocks.0.attention.output"}
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "plain"))
    rounded, stored = experts_of(loaded(source, quantization="int8")), experts_of(loaded(source))
    for path, part in rounded.items():
        assert torch.equal(part.stacked, stored[path].stacked)  # type: ignore[arg-type]
