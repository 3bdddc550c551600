"""The digest of a checkpoint."""

import shutil
from pathlib import Path

import pytest

from pagewire.internal.v1.worker_pb2 import Initialize
from worker.weights import digest
from worker.weights.digest import begin_digest, weights_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(range(100)))
    return made


def test_equal_files_have_equal_digests(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert weights_digest(folder) == weights_digest(tmp_path / "copy")


def test_each_byte_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "PIECE_BYTES", 16)
    seen = {weights_digest(folder)}
    for at in (0, 50, 99):
        changed = bytearray(range(100))
        changed[at] ^= 1
        (folder / "model.safetensors").write_bytes(changed)
        seen.add(weights_digest(folder))
    (folder / "config.json").write_text('{"rope_theta": 5}')
    assert len(seen | {weights_digest(folder)}) == 5


def test_a_file_alone(folder: Path) -> None:
    """A GGUF file has its digest under any name."""
    file = folder / "model.safetensors"
    assert weights_digest(file) == weights_digest(file.rename(folder / "other.gguf"))


def test_only_a_key_needs_it(folder: Path) -> None:
    assert begin_digest(Initialize(model_path=str(folder))) is None
    with_key = begin_digest(Initialize(model_path=str(folder), cache_key=b"k"))
    assert with_key is not None and with_key.result() == weights_digest(folder)


def test_random_weights_are_named_by_their_seed(folder: Path) -> None:
    one, other = (
        begin_digest(Initialize(model_path=str(folder), cache_key=b"k", load_format="dummy", seed=seed))
        for seed in (1, 2)
    )
    assert one is not None and other is not None and one.result() != other.result()
