"""Which checkpoints' images are served, and why others' are not."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from frontend.media.checkpoint import Images, read_images
from frontend.media.family import Settings
from frontend.text.tokenizer import Tokenizer
from tests.frontend.media.conftest import FolderOf, read

NAMES = (
    *("config.json", "processor_config.json", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)


SMALL = {"vision_config": {"model_type": "pixtral", "image_size": 60, "patch_size": 8}}


def changed(folder: Path, to: Path, **changes: dict[str, Any]) -> Images:
    """Returns how images are read for a copy. changes: of the values of a file; None: no value."""
    for name in NAMES:
        values = read(folder, name)
        values.update(changes.get(name.removesuffix(".json"), {}))
        kept = {key: value for key, value in values.items() if value is not None}
        (to / name).write_text(json.dumps(kept))
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(to / "tokenizer.json")))
    return read_images(to, read(to, "config.json"), tokenizer)


def test_a_model_of_text_has_no_images_and_no_caveat(tmp_path: Path, folder_of: FolderOf) -> None:
    assert changed(folder_of("llava"), tmp_path, config={"vision_config": None}) == Images()


def test_the_image_processor_may_be_part_of_the_processor(tmp_path: Path, folder_of: FolderOf) -> None:
    """As transformers 5 saves it."""
    folder = folder_of("llava")
    nested = {"image_processor": read(folder, "preprocessor_config.json")}
    images = changed(folder, tmp_path, processor_config=nested, preprocessor_config={"size": 3})
    assert images.reader is not None


def test_the_name_of_the_processor_that_computes_with_torch(tmp_path: Path, folder_of: FolderOf) -> None:
    name = {"image_processor_type": "CLIPImageProcessorFast"}
    assert changed(folder_of("llava"), tmp_path, preprocessor_config=name).reader is not None


def test_sizes_of_older_files_are_numbers(tmp_path: Path, folder_of: FolderOf) -> None:
    sizes = {"size": 56, "crop_size": 56}
    assert changed(folder_of("llava"), tmp_path, preprocessor_config=sizes).reader is not None


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("llava", {"preprocessor_config": {"image_processor_type": "XImageProcessor"}}, "XImageProcessor"),
        ("llava", {"config": {"model_type": "y"}}, "models of the type y"),
        ("llava", {"preprocessor_config": {"do_resize": False}}, "do_resize is false"),
        ("llava", {"preprocessor_config": {"size": {"shortest_edge": "a"}}}, "shortest_edge must be"),
        ("llava", {"preprocessor_config": {"resample": 9}}, "no filter"),
        ("llava", {"preprocessor_config": {"crop_size": 55}}, "makes 55 x 55 pixels"),
        ("llava", {"processor_config": {"image_token": "<nothing>"}}, "no token <nothing>"),
        ("llava", {"processor_config": {"patch_size": 0}}, "patch_size must be"),
        ("pixtral", {"preprocessor_config": {"size": {"longest_edge": 65}}}, "up to 72 pixels"),
        ("mistral3", {"preprocessor_config": {"size": {"longest_edge": 60}}, "config": SMALL}, "up to 64"),
        ("idefics3", {"preprocessor_config": {"max_image_size": {"longest_edge": 31}}}, "makes 31 pixels"),
        ("gemma3", {"preprocessor_config": {"do_pan_and_scan": True}}, "do_pan_and_scan is true"),
        ("gemma3", {"preprocessor_config": {"size": {"height": 32, "width": 31}}}, "makes 31 x 32 pixels"),
        ("gemma3", {"processor_config": {"image_seq_length": 9}}, "has 9 tokens for an image"),
        ("gemma4", {"preprocessor_config": {"max_soft_tokens": 100}}, "none of"),
        ("gemma4", {"preprocessor_config": {"patch_size": 8}}, "the encoder takes {'patch_size': 4"),
        ("gemma4", {"preprocessor_config": {"max_soft_tokens": 140}}, "more rows or columns"),
        ("gemma4_unified", {"preprocessor_config": {"max_soft_tokens": 140}}, "more rows or columns"),
        ("internvl", {"preprocessor_config": {"max_patches": 65}}, "above 64"),
        ("llama4", {"preprocessor_config": {"max_patches": 65}}, "above 64"),
        ("llama4", {"preprocessor_config": {"size": {"height": 27, "width": 27}}}, "makes 27 x 27 pixels"),
        ("llama4", {"processor_config": {"pixel_shuffle_ratio": 1}}, "pixel_shuffle_ratio is 1 in"),
        ("qwen2_vl", {"preprocessor_config": {"merge_size": 3}}, "the encoder takes other patches"),
        ("qwen2_5_vl", {"preprocessor_config": {"size": {"shortest_edge": 4}}}, "longest_edge must be"),
        ("qwen2_5_vl", {"preprocessor_config": {"max_pixels": "many"}}, "max_pixels must be"),
    ],
)
def test_a_checkpoint_that_is_served_as_text_alone_says_why(
    family: str,
    changes: dict[str, dict[str, Any]],
    why: str,
    tmp_path: Path,
    folder_of: FolderOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    images = changed(folder_of(family), tmp_path, **changes)
    assert images.reader is None and why in images.caveat
    assert "served text alone" in caplog.text and why in caplog.text


def test_without_a_file_of_the_processor(tmp_path: Path, folder_of: FolderOf) -> None:
    shutil.copytree(folder_of("llava"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "preprocessor_config.json").unlink()
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
    images = read_images(tmp_path, read(tmp_path, "config.json"), tokenizer)
    assert images == Images(caveat="there is no preprocessor_config.json")


def test_sizes_that_no_file_states(tmp_path: Path, folder_of: FolderOf) -> None:
    """As in the classes of transformers."""
    tower = {"model_type": "pixtral", "patch_size": 8}
    assert changed(folder_of("pixtral"), tmp_path, config={"vision_config": tower}).reader is not None
    tower = {"model_type": "clip_vision_model", "patch_size": 14}
    images = changed(folder_of("llava"), tmp_path, config={"vision_config": tower})
    assert "the encoder takes 224 on each side" in images.caveat


def test_a_value_that_is_null_is_the_default() -> None:
    settings = Settings("a.json", {"resample": None, "min_patches": None})
    assert settings.resampling(3) == 3 and settings.whole("min_patches", 1) == 1


def test_without_pillow(tmp_path: Path, folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    images = changed(folder_of("llava"), tmp_path)
    assert images.reader is None and "pip install 'pagewire[images]'" in images.caveat
