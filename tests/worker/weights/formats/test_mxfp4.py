"""MXFP4: experts of gpt-oss in 4 bits stand for the values that the format's description says, exactly, and
are computed with as they are."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu.matmul.groups.weight import GroupedWeight
from pagewire.errors import StartupError
from tests.patience import PATIENCE_S
from tests.worker.fakes import Driver
from worker.cpu.fused_decoder.decoder import FusedDecoder
from worker.layers.experts.matrices import ExpertMatrices
from worker.weights import held_bits, loader
from worker.weights.checkpoint import Checkpoint
from worker.weights.loader import Work, run_side_by_side
from worker.weights.open import open_checkpoint

SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
TALK = [3 + 7 * i % 200 for i in range(20)]
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
    return write_mxfp4(checkpoint("gpt_oss", **SIZES), tmp_path_factory.mktemp("mxfp4"))


def write_mxfp4(source: Path, parent: Path) -> tuple[Path, Path]:
    """Packs the experts of a gpt-oss: see packed()."""
    folder, plain = parent / "packed", parent / "plain"
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


def experts_of(folder: Path) -> list[torch.Tensor]:
    """Words of all experts, loaded."""
    model = Driver(folder, dtype="bfloat16", block_size=16).runner.backend.model
    found = [part.packed for part in model.modules() if isinstance(part, ExpertMatrices)]
    return [each.words for packed in found for each in packed if isinstance(each, GroupedWeight)]


def last_logits(driver: Driver) -> torch.Tensor:
    """After a prompt."""
    sequence = driver.add(TALK, 1)[0]
    driver.run()
    return sequence.logits[0]


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


@pytest.mark.cpu_kernels
def test_kept_in_their_own_bits(packed: tuple[Path, Path], caplog: pytest.LogCaptureFixture):
    """Exactly the format's values, gates before ups, and no matrix of experts in 16 bits beside them; logits
    are those of the unpacked weights but for what activations of 8 bits lose. One call per step."""
    folder, plain = packed
    expected = load_file(plain / "model.safetensors")
    with caplog.at_level("INFO"):
        driver = Driver(folder, dtype="bfloat16", block_size=16)
    assert driver.ready.model.quantization == "mxfp4" and "WARNING" not in caplog.text
    model = driver.runner.backend.model
    assert isinstance(model, FusedDecoder)
    gate_up, down = (part for part in model.modules() if isinstance(part, ExpertMatrices))
    for expert, (first, second) in enumerate(zip(gate_up.packed, down.packed, strict=True)):
        name = "model.layers.0.mlp.experts"
        both = expected[f"{name}.gate_up_proj"][expert].t()
        assert isinstance(first, GroupedWeight) and isinstance(second, GroupedWeight)
        assert torch.equal(first.values(), torch.cat((both[::2], both[1::2])))
        assert torch.equal(second.values(), expected[f"{name}.down_proj"][expert].t())
    unpacked = Driver(folder, dtype="float32")
    assert unpacked.ready.model.quantization == ""
    weights = sum(each.nbytes for part in (gate_up, down) for each in part.packed)
    count = sum(expected[f"{name}.{part}_proj"].numel() for part in ("gate_up", "down"))
    padding = 48 * -(-SIZES["hidden_size"] // 48) / SIZES["hidden_size"]
    assert 8 * weights < 6 * padding * count, "5 bits a weight with exponents, and biases"
    one, other = last_logits(driver), last_logits(unpacked)
    assert 0.99 < float(torch.cosine_similarity(one, other, dim=0)) < 0.9999999


@pytest.mark.cpu_kernels
def test_alone_and_beside_other_rows(packed: tuple[Path, Path]):
    """The same bits, in chunks of odd sizes, recomputed after a preemption, and layer by layer."""

    def logits(
        beside: int = 0, budget: int = 4096, kept: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[int]]:
        driver = Driver(packed[0], dtype="bfloat16", block_size=16, num_blocks=100, budget=budget)
        sequence = driver.add(TALK, 5, delivered=kept)[0]
        for number in range(beside):
            driver.add(TALK[number:], 3)
        driver.run()
        return torch.stack(sequence.logits), sequence.output

    expected, tokens = logits()
    assert torch.equal(logits(beside=9)[0], expected)
    assert torch.equal(logits(beside=2, budget=7)[0], expected)
    assert torch.equal(logits(budget=13, kept=tuple(tokens[:2]))[0], expected[2:])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_scale_that_is_no_number(dtype: str, packed: tuple[Path, Path], tmp_path: Path):
    """A start-up error that names the weight."""
    shutil.copytree(packed[0], tmp_path / "wrong")
    path, name = tmp_path / "wrong" / "model.safetensors", "model.layers.0.mlp.experts.down_proj"
    tensors = load_file(path)
    tensors[f"{name}_scales"][1, 7, 0] = 255
    save_file(tensors, path)
    with pytest.raises(StartupError, match=f"{name} in .* holds NaN"):
        Driver(path.parent, dtype=dtype)


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


@pytest.mark.cpu_kernels
def test_read_side_by_side(packed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    """By several threads, each a few rows at a time: the same words."""
    monkeypatch.setattr(loader, "READERS", 1)
    expected = experts_of(packed[0])
    monkeypatch.setattr(loader, "READERS", 4)
    monkeypatch.setattr(held_bits, "PIECE_VALUES", 500)
    threads: set[int] = set()
    several = threading.Event()
    read = Checkpoint.read

    def together(self: Checkpoint, name: str, part: tuple[slice, ...]) -> torch.Tensor:
        if name.endswith("_blocks"):
            threads.add(threading.get_ident())
            if len(threads) > 1:
                several.set()
            assert several.wait(PATIENCE_S)
        return read(self, name, part)

    monkeypatch.setattr(Checkpoint, "read", together)
    found = experts_of(packed[0])
    assert len(found) == len(expected) > 2
    assert all(map(torch.equal, found, expected))


def test_experts_that_are_unpacked_whole_are_read_one_at_a_time(
    packed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    """Several at once could take more memory than a shard; small ones are read at once."""
    counts: list[int] = []

    def record(works: Sequence[Work], num_threads: int) -> Iterator[int]:
        counts.append(num_threads)
        return run_side_by_side(works, num_threads)

    monkeypatch.setattr(loader, "run_side_by_side", record)
    Driver(packed[0], dtype="float32")
    monkeypatch.setattr(loader, "LARGE_PIECE", 1000)
    Driver(packed[0], dtype="float32")
    assert counts == [loader.READERS, 1]
