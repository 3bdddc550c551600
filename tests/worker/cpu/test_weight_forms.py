"""In how many bits weights are held: which matrices, and what is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu import weight_forms
from kernels.cpu.matmul.groups.weight import GroupedWeight
from kernels.cpu.matmul.int8 import QuantizedWeight
from kernels.cpu.matmul.packed import pack_weight
from pagewire.errors import StartupError
from tests.worker.fakes import Driver
from tests.worker.weights.formats import quantizers
from tests.worker.weights.formats.quantizers import quantize_checkpoint
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.layers.experts.matrices import ExpertMatrices
from worker.layers.matrix import Matrix
from worker.models.base import LanguageModel

Checkpoints = Callable[..., Path]
TALK = [3 + 7 * i % 200 for i in range(20)]


def model_of(driver: Driver) -> LanguageModel:
    model = driver.runner.backend.model
    return model.model if isinstance(model, FusedDecoder) else model


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_head_has_8_bits_unless_told_not_to(quantization: str, checkpoint: Checkpoints) -> None:
    """A tied embedding too; one that only looks up stays what it is."""
    for tied in (True, False):
        folder = checkpoint("llama", hidden_size=64, tie_word_embeddings=tied)
        for plain_head in (False, True):
            driver = Driver(folder, dtype="bfloat16", quantization=quantization, plain_head=plain_head)
            model = model_of(driver)
            assert isinstance(model.head.packed, QuantizedWeight) == (not plain_head)
            assert (model.embedding.packed is None) == (not tied)
            others = [part for part in model.modules() if isinstance(part, Matrix)]
            forms = {type(part.packed) for part in others if part not in (model.head, model.embedding)}
            assert forms == {QuantizedWeight if quantization == "int8" else GroupedWeight}


@pytest.mark.cpu_kernels
def test_experts_have_4_bits_too(checkpoint: Checkpoints) -> None:
    """Layer by layer; a row's logits do not depend on other rows."""
    folder = checkpoint("mixtral", hidden_size=64, intermediate_size=64)
    alone, crowd = (Driver(folder, dtype="bfloat16", quantization="int4") for _ in range(2))
    layers = [part for part in model_of(alone).modules() if isinstance(part, ExpertMatrices)]
    assert layers and all(isinstance(each, GroupedWeight) for layer in layers for each in layer.packed)
    logits = []
    for driver, others in ((alone, 0), (crowd, 3)):
        sequence = driver.add(TALK, 3)[0]
        for number in range(others):
            driver.add(TALK[number:], 3)
        driver.run()
        logits.append(torch.stack(sequence.logits))
    assert torch.equal(*logits)


@pytest.mark.cpu_kernels
def test_int4_is_near_bfloat16_and_takes_a_float16_checkpoint(checkpoint: Checkpoints) -> None:
    """The logits of a small random model, where every layer adds to what is lost; and other ones, or nothing
    was quantized."""
    folder = checkpoint("llama", hidden_size=128, head_dim=32)
    logits = {}
    for dtype, kind in (("bfloat16", ""), ("bfloat16", "int4"), ("float16", "int4")):
        driver = Driver(folder, dtype=dtype, quantization=kind)
        sequence = driver.add(TALK, 1)[0]
        driver.run()
        logits[dtype, kind] = sequence.logits[0]
        assert driver.ready.model.dtype == "bfloat16" and driver.ready.model.quantization == kind
    plain, ours, of_halves = logits.values()
    assert 0.5 < float(torch.cosine_similarity(ours, plain, dim=0)) < 0.99
    assert torch.equal(ours, of_halves)


@pytest.mark.cpu_kernels
def test_float16_keeps_its_bits(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the memory of float32, and its logits, of a prompt and of single tokens."""
    folder = tmp_path / "halves"
    shutil.copytree(checkpoint("llama"), folder)
    for file in folder.glob("*.safetensors"):
        tensors = {name: tensor.half() for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
    logits, held = [], []
    for form in (torch.float16, torch.int32):
        driver = Driver(folder, dtype="float16")
        matrices = [part for part in model_of(driver).modules() if isinstance(part, Matrix)]
        packed = [part.packed for part in matrices if part.packed is not None]
        assert {each.words.dtype for each in packed} == {form}
        held.append(sum(each.nbytes for each in packed))
        sequence = driver.add(TALK, 3)[0]
        driver.run()
        logits.append(torch.stack(sequence.logits))
        monkeypatch.setattr(weight_forms, "narrow_weight", pack_weight)
    assert torch.equal(*logits) and held[0] < 0.52 * held[1]


def test_int4_where_it_cannot_be(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """A matrix that is narrower than a group, by name; the form of CUDA devices; and weights that are
    quantized already."""
    with pytest.raises(StartupError, match=r"blocks\.0\.\S+ has 16 inputs, and a group has 32") as narrow:
        Driver(checkpoint("llama", intermediate_size=16), dtype="bfloat16", quantization="int4")
    assert narrow.value.todo == "use --quantization int8"
    with pytest.raises(StartupError, match="cannot quantize the weights to int4-g32"):
        Driver(checkpoint("llama"), dtype="bfloat16", quantization="int4-g32")
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    source = checkpoint("llama", hidden_size=64, intermediate_size=96, head_dim=16)
    quantize_checkpoint(source, tmp_path / "packed", quantizers.gptq(4, 1, False), config)
    with pytest.raises(StartupError, match="quantized already: quant_method is gptq"):
        Driver(tmp_path / "packed", quantization="int4")
