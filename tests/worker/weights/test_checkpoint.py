"""What a folder of safetensors files says of its tensors, before and while they are read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from worker.weights.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint

KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BOOL": torch.bool,
}
FLOATS = ("F64", "F32", "BF16", "F16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({kind: torch.ones(3, 5).to(dtype) for kind, dtype in KINDS.items()}, tmp_path / SINGLE_FILE)
    return tmp_path


def shards(folder: Path) -> None:
    """Makes a checkpoint with tensor a in one file, b and c in another."""
    folder.mkdir()
    save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    save_file({"b": torch.ones(2), "c": torch.ones(2)}, folder / "two.safetensors")
    index = '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}'
    (folder / INDEX_FILE).write_text(index)


@pytest.mark.parametrize("kind", KINDS)
def test_types_and_sizes_are_those_of_the_header(folder: Path, kind: str) -> None:
    with Checkpoint(folder) as checkpoint:
        assert kind in checkpoint and checkpoint.shape(kind) == (3, 5)
        assert checkpoint.kind(kind) == kind
        assert checkpoint.num_bytes(kind) == 15 * KINDS[kind].itemsize
        if kind in FLOATS:
            assert checkpoint.dtype(kind) == KINDS[kind]
            return
        with pytest.raises(StartupError) as refused:
            checkpoint.dtype(kind)
    assert refused.value.why == (
        f"tensor {kind} in {SINGLE_FILE} holds {kind}, not one of F64, F32, BF16, F16"
    )
    assert "quantization_config" in refused.value.todo


def test_which_file_holds_a_tensor(tmp_path: Path) -> None:
    shards(tmp_path / "model")
    with Checkpoint(tmp_path / "model") as checkpoint:
        assert sorted(checkpoint.names()) == ["a", "b", "c"] and "d" not in checkpoint
        files = [checkpoint.file_of(name) for name in "abc"]
    assert files == ["one.safetensors", "two.safetensors", "two.safetensors"]


def test_one_file_counts_more_than_an_index(folder: Path) -> None:
    (folder / INDEX_FILE).write_text("no JSON")
    with Checkpoint(folder) as checkpoint:
        assert sorted(checkpoint.names()) == sorted(KINDS)


def test_only_the_part_that_is_asked_for_is_read(tmp_path: Path) -> None:
    values = torch.arange(12.0).view(3, 4)
    save_file({"a": values}, tmp_path / SINGLE_FILE)
    with Checkpoint(tmp_path) as checkpoint:
        assert torch.equal(checkpoint.read("a", (slice(1, 3), slice(0, 2))), values[1:3, 0:2])
        assert torch.equal(checkpoint.read("a", (slice(2, 3),)), values[2:3])
        assert torch.equal(checkpoint.read("a", ()), values)


def test_files_are_closed_with_the_checkpoint(folder: Path) -> None:
    """Reading is then an error in one line, which names tensor and file."""
    with Checkpoint(folder) as checkpoint:
        pass
    with pytest.raises(StartupError, match=f"^[^:]*: tensor F32 in {SINGLE_FILE}: "):
        checkpoint.read("F32", ())


def test_files_that_were_opened_are_closed_where_another_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shards(folder)
    (folder / "two.safetensors").write_bytes(b"x")
    checkpoint = Checkpoint(folder)
    with pytest.raises(StartupError) as refused:
        checkpoint.__enter__()
    assert refused.value.why.startswith("two.safetensors is damaged: ")
    assert refused.value.todo == "download or copy the file again"
    with pytest.raises(StartupError, match="closed"):
        checkpoint.read("a", ())


def test_the_index_decides_between_two_files_that_have_a_tensor(tmp_path: Path) -> None:
    """Shards of another checkpoint that are used again hold more than the index takes of them."""
    folder = tmp_path / "model"
    shards(folder)
    save_file({"a": -torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}, folder / "two.safetensors")
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.file_of("a") == "one.safetensors"
        assert not checkpoint.read("a", ()).equal(-torch.ones(2))


def test_a_tensor_in_two_files_and_not_in_the_index_names_both(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shards(folder)
    for name in ("one", "two"):
        path = folder / f"{name}.safetensors"
        save_file({**load_file(path), "x": torch.ones(2)}, path)
    with pytest.raises(StartupError) as refused, Checkpoint(folder):
        pass
    assert refused.value.why == "tensor x is in one.safetensors and in two.safetensors"


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt"])
def test_pickle_files_are_not_read(tmp_path: Path, suffix: str) -> None:
    """The first one by name is named, with what to do."""
    for name in ("z", "a"):
        (tmp_path / f"{name}.{suffix}").write_bytes(b"\x80\x02.")
    with pytest.raises(StartupError) as refused, Checkpoint(tmp_path):
        pass
    assert f"{tmp_path} holds pickle files only (a.{suffix})" in refused.value.why
    assert "convert the checkpoint to safetensors" in refused.value.todo


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ('{"weight_map": {"a": ""}}', "'' is not a file"),
        ('{"weight_map": {}}', f"{INDEX_FILE} is damaged: weight_map must map tensors to files"),
        ('{"weight_map": {"a": 1}}', f"{INDEX_FILE} is damaged: weight_map must map tensors to files"),
        ('{"a": {}}', f"{INDEX_FILE} is damaged: KeyError('weight_map')"),
    ],
)
def test_an_index_that_says_nothing(tmp_path: Path, index: str, why: str) -> None:
    (tmp_path / INDEX_FILE).write_text(index)
    with pytest.raises(StartupError) as refused, Checkpoint(tmp_path):
        pass
    assert refused.value.why == why
