"""Checkpoints in 4 bits that keep their integers: which matrices do, that no other form of them is left, and
what is said about the others."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu.matmul.groups.weight import GroupedWeight
from pagewire.errors import StartupError
from tests.worker.cpu.test_weight_forms import model_of
from tests.worker.fakes import Driver
from tests.worker.weights.formats import quantizers
from tests.worker.weights.formats.quantizers import Quantizer, quantize_checkpoint
from worker.config.names import NAMES
from worker.cpu import weights as cpu_weights
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.layers.base import Weight
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.matrix import Matrix
from worker.weights import held_bits
from worker.weights.loader import fill_target
from worker.weights.source import TensorSource

pytestmark = pytest.mark.cpu_kernels

Checkpoints = Callable[..., Path]
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
TALK = [3 + 7 * i % 200 for i in range(20)]
GPTQ: dict[str, object] = {"quant_method": "gptq", "bits": 4}
HELD: dict[str, tuple[Quantizer, dict[str, object]]] = {
    "gptq-int4": (quantizers.gptq(4, 1, False), GPTQ),
    "gptq-int4, act-order": (quantizers.gptq(4, 1, True), GPTQ | {"desc_act": True}),
    "gptq-int4, one scale": (quantizers.gptq(4, 0, False, 96), GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq-int2": (quantizers.gptq(2, 1, True), GPTQ | {"bits": 2}),
    "awq-int4": (quantizers.awq, {"quant_method": "awq", "bits": 4}),
}


def last_logits(driver: Driver) -> torch.Tensor:
    sequence = driver.add(TALK, 1)[0]
    driver.run()
    return sequence.logits[0]


def weights_of(driver: Driver) -> dict[str, GroupedWeight]:
    """Of the matrices that keep their integers, by path."""
    matrices = {path: part for path, part in model_of(driver).named_modules() if isinstance(part, Matrix)}
    return {path: part.packed for path, part in matrices.items() if isinstance(part.packed, GroupedWeight)}


@pytest.mark.parametrize("name", HELD)
def test_the_checkpoints_own_values(
    name: str, checkpoint: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bit for bit, merged as the model merges them, and no 16 bits of a matrix are left; logits are those of
    the unpacked weights in float32 but for what activations of 8 bits lose."""
    source = checkpoint("llama", **SHAPE)
    expected = quantize_checkpoint(source, tmp_path / "packed", *HELD[name])
    with caplog.at_level(logging.INFO):
        ours = Driver(tmp_path / "packed", dtype="float16")
    assert ours.ready.model.quantization == name.partition(",")[0]
    assert ours.ready.model.dtype == "bfloat16"
    assert "keep their integers, in 4 bits" in caplog.text and "WARNING" not in caplog.text
    assert f"in bfloat16, weights in {ours.ready.model.quantization}:" in caplog.text
    weights = weights_of(ours)
    paths = [path.format(layer=0) for path in NAMES if path.endswith(("qkv", "output", "gate_up", "down"))]
    assert sorted(weights) == sorted(paths)
    for path, weight in weights.items():
        modules = NAMES[path.replace(".0.", ".{layer}.")]
        parts = [expected[f"{module.format(layer=0)}.weight"] for module in modules]
        assert torch.equal(weight.values(), torch.cat(parts))
    unpacked = Driver(tmp_path / "packed", dtype="float32")
    assert unpacked.ready.model.quantization == ""
    assert unpacked.ready.model.weight_bytes > 1.5 * ours.ready.model.weight_bytes
    one, other = last_logits(ours), last_logits(unpacked)
    assert 0.995 < float(torch.cosine_similarity(one, other, dim=0)) < 0.9999999


def test_no_matrix_in_16_bits_is_left(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one made while weights are read."""
    quantize_checkpoint(checkpoint("llama", **SHAPE), tmp_path / "packed", *HELD["gptq-int4"])
    unpacked: list[str] = []

    def fill(source: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        unpacked.append(name)
        yield from fill_target(source, weight, name)

    monkeypatch.setattr(held_bits, "fill_target", fill)
    driver = Driver(tmp_path / "packed", dtype="bfloat16")
    sizes = {weight.out_features * weight.in_features for weight in weights_of(driver).values()}
    gc.collect()
    floats = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    matrices = [each for each in floats if each.is_floating_point() and each.dim() == 2]
    assert sizes and not [each.shape for each in matrices if each.numel() in sizes]
    assert unpacked and not [name for name in unpacked if "_proj" in name]


def test_logits_are_the_same_alone_and_beside_other_rows(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """With an order of the inputs; in chunks of odd sizes and recomputed after a preemption too."""
    folder = quantizers.act_order_checkpoint(checkpoint("llama", **SHAPE), tmp_path / "packed")

    def logits(
        beside: int = 0, budget: int = 4096, kept: Sequence[int] = ()
    ) -> tuple[torch.Tensor, list[int]]:
        driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=100, budget=budget)
        sequence = driver.add(TALK, 5, delivered=kept)[0]
        for number in range(beside):
            driver.add(TALK[number:], 3)
        driver.run()
        return torch.stack(sequence.logits), sequence.output

    expected, tokens = logits()
    assert len(weights_of(Driver(folder, dtype="bfloat16"))) == 4
    assert torch.equal(logits(beside=9)[0], expected)
    assert torch.equal(logits(beside=2, budget=7)[0], expected)
    assert torch.equal(logits(budget=13, kept=tokens[:2])[0], expected[2:])


def test_one_call_per_step_gives_the_bits_of_the_layers(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantizers.act_order_checkpoint(checkpoint("llama", **SHAPE), tmp_path / "packed")
    drivers = [Driver(folder, dtype="bfloat16", block_size=16, num_blocks=100)]
    monkeypatch.setattr(cpu_weights, "fuse", lambda model, *_: model)
    drivers.append(Driver(folder, dtype="bfloat16", block_size=16, num_blocks=100))
    assert [type(driver.runner.backend.model) is FusedDecoder for driver in drivers] == [True, False]
    assert torch.equal(*map(last_logits, drivers))


def test_experts(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Each in its own integers, and the attention beside them."""
    source = checkpoint("qwen3_moe", hidden_size=64, num_hidden_layers=1)
    expected = quantize_checkpoint(source, tmp_path / "packed", *HELD["gptq-int4, act-order"])
    driver = Driver(tmp_path / "packed", dtype="bfloat16")
    (gate_up, down) = [part for part in model_of(driver).modules() if isinstance(part, ExpertMatrices)]
    for expert, (first, second) in enumerate(zip(gate_up.packed, down.packed, strict=True)):
        name = f"model.layers.0.mlp.experts.{expert}"
        gate, up, back = (expected[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        assert isinstance(first, GroupedWeight) and isinstance(second, GroupedWeight)
        assert torch.equal(first.values(), torch.cat((gate, up)))
        assert torch.equal(second.values(), back)
    assert len(weights_of(driver)) == 2
    unpacked = last_logits(Driver(tmp_path / "packed", dtype="float32"))
    assert float(torch.cosine_similarity(last_logits(driver), unpacked, dim=0)) > 0.99


@pytest.mark.parametrize(
    ("quantizer", "config", "changes", "why", "held"),
    [
        (quantizers.gptq(8, 1, False), {"bits": 8}, {}, "integers of 8 bits", 0),
        (quantizers.gptq(4, 1, False, 24), {}, {}, "a group of 24 inputs, no multiple of 16", 0),
        (quantizers.gptq(4, 1, False), {}, {"dtype": "float32"}, "and the dtype is float32", 0),
        (
            quantizers.gptq(4, 1, False),
            {},
            {"quantization": "int8"},
            "--quantization int8 rounds them again",
            0,
        ),
        (
            quantizers.gptq(4, 1, True, each_its_own=True),
            {},
            {},
            "blocks.0.attention.qkv (and 1 more): its parts have different groups of inputs",
            2,
        ),
        (
            quantizers.fp8("tensor"),
            {"quant_method": "fp8"},
            {},
            "no kernel computes with them as they are",
            0,
        ),
    ],
    ids=["8 bits", "odd groups", "float32", "int8", "orders", "fp8"],
)
def test_what_is_unpacked_and_why(
    quantizer: Quantizer,
    config: dict[str, object],
    changes: dict[str, str],
    why: str,
    held: int,
    checkpoint: Checkpoints,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning."""
    quantize_checkpoint(checkpoint("llama", **SHAPE), tmp_path / "packed", quantizer, GPTQ | config)
    driver = Driver(tmp_path / "packed", **{"dtype": "bfloat16"} | changes)  # type: ignore[arg-type]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert why in warning and "MB of memory" in warning
    assert len(weights_of(driver)) == held
    assert driver.ready.model.quantization == ("gptq-int4" if held else changes.get("quantization", ""))


def test_a_scale_that_is_not_finite(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """A start-up error that names the weight."""
    quantize_checkpoint(checkpoint("llama", **SHAPE), tmp_path / "packed", *HELD["gptq-int4"])
    path, name = tmp_path / "packed" / "model.safetensors", "model.layers.0.mlp.up_proj"
    tensors = load_file(path)
    tensors[f"{name}.scales"][1, 7] = torch.inf
    save_file(tensors, path)
    with pytest.raises(StartupError, match=rf"{name}\.weight in \S+ holds infinity"):
        Driver(tmp_path / "packed", dtype="bfloat16")
