"""The folder of a checkpoint, and hints for what is none."""

from pathlib import Path

import pytest

from pagewire.checkpoints.paths import checkpoint_folder, checkpoint_path, default_served_name
from pagewire.errors import StartupError


def test_the_demo_model_ships_with_the_package():
    assert (checkpoint_folder("demo") / "model.safetensors").is_file()
    assert default_served_name("demo") == "demo"


def test_a_folder(tmp_path: Path):
    with pytest.raises(StartupError, match=r"has no config\.json"):
        checkpoint_folder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert checkpoint_folder(str(tmp_path)) == tmp_path.resolve()
    assert default_served_name(f"{tmp_path}/") == tmp_path.name


def test_a_gguf_file(tmp_path: Path):
    path = tmp_path / "small.Q4_K.gguf"
    with pytest.raises(StartupError, match="is not a file"):
        checkpoint_path(str(path))
    path.write_bytes(b"GGUF")
    assert checkpoint_path(str(path)) == path.resolve()
    assert default_served_name(str(path)) == "small.Q4_K"
    assert checkpoint_path("demo") == checkpoint_folder("demo")


@pytest.mark.parametrize(
    ("model", "todo"),
    [
        ("meta-llama/Llama-3.1-8B", "hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"),
        ("/no/such/folder", "give the folder of a Hugging Face checkpoint"),
        ("typo", "give the folder of a Hugging Face checkpoint"),
    ],
)
def test_what_is_no_folder(model: str, todo: str):
    """A name on the Hub is not downloaded; the hint says how to do that."""
    with pytest.raises(StartupError, match="is not a folder") as caught:
        checkpoint_folder(model)
    assert todo in caught.value.todo
