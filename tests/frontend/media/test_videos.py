"""Frames of videos: the sizes and tokens of transformers, and its pixels but for torchvision's resizing."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from PIL import Image
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

from frontend.errors import InvalidRequest, Unsupported
from frontend.media.checkpoint import read_images
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import prompt_pb2
from tests.frontend.media.conftest import FolderOf, read
from tests.frontend.media.pictures import file_of, picture

AROUND = "<|vision_start|>{}<|vision_end|>"
VIDEO, IMAGE = AROUND.format("<|video_pad|>"), AROUND.format("<|image_pad|>")


def video(count: int, width: int = 70, height: int = 50) -> tuple[list[Image.Image], prompt_pb2.Media]:
    """Returns the frames of a video, each a little brighter, and its medium, of two frames per second."""
    first = picture(width, height)
    frames = [first.point(lambda value, step=step: value + 9 * step) for step in range(count)]
    seconds = [place / 2 for place in range(count)]
    files = [file_of(frame) for frame in frames]
    return frames, prompt_pb2.Media(frames=prompt_pb2.VideoFrames(files=files, seconds=seconds))


def expanded(folder: Path, prompt: str, *media: Any) -> tuple[list[int], list[engine_pb2.MediaItem]]:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    reader = read_images(folder, read(folder, "config.json"), tokenizer).reader
    assert reader is not None
    named = [(f"prompt.media[{place}]", each) for place, each in enumerate(media)]
    encoding, items = reader.expand(tokenizer.encode(prompt, add_special_tokens=False), named, "prompt.media")
    return list(encoding.token_ids), items


def limits(folder: Path) -> dict[str, int]:
    size = read(folder, "video_preprocessor_config.json")["size"]
    return {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}


@pytest.mark.parametrize("count", [2, 3, 6])
def test_as_transformers(count: int, folder_of: FolderOf) -> None:
    folder = folder_of("qwen3_vl")
    frames, medium = video(count)
    rows, columns = (
        side // 8 for side in smart_resize(count, 50, 70, temporal_factor=2, factor=8, **limits(folder))
    )
    pairs = -(-count // 2)
    grid = np.array([[pairs, rows * 2, columns * 2]])
    metadata = SimpleNamespace(fps=2.0, frames_indices=list(range(count)))
    names = "vision_start_token", "vision_end_token", "video_token"
    processor = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        **{name: read(folder, "tokenizer_config.json")["extra_special_tokens"][name] for name in names},
    )
    processor._calculate_timestamps = lambda *given: Qwen3VLProcessor._calculate_timestamps(processor, *given)
    found = {"video_grid_thw": grid, "video_metadata": [metadata]}
    text = Qwen3VLProcessor.replace_video_token(processor, found, 0)
    ids, items = expanded(folder, f"<|begin|>{VIDEO}what?", medium)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert ids == tokenizer.encode(f"<|begin|>{text}what?", add_special_tokens=False).ids
    pad = tokenizer.token_to_id("<|video_pad|>")
    positions = [position for item in items for position in unpack_u32(item.positions)]
    assert positions == [place for place, each in enumerate(ids) if each == pad]
    resized = [
        np.array(frame.resize((columns * 8, rows * 8), Image.Resampling.BICUBIC))
        for frame in [*frames, *frames[-1:]][: 2 * pairs]
    ]
    for number, item in enumerate(items):
        assert list(item.shape) == [2, rows * 8, columns * 8, 3]
        pixels = np.frombuffer(item.data, np.uint8).reshape(item.shape)
        assert np.array_equal(pixels, np.stack(resized[2 * number : 2 * number + 2]))


def test_sizes(folder_of: FolderOf) -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(folder_of("qwen3_vl") / "tokenizer.json")))
    folder = folder_of("qwen3_vl")
    reader = read_images(folder, read(folder, "config.json"), tokenizer).reader
    family: Any = reader._video  # type: ignore[union-attr]
    random.seed(5)
    for _ in range(300):
        count, width, height = (int(2 ** random.uniform(1, most)) for most in (6, 9, 9))
        if max(width, height) > 150 * min(width, height):
            continue
        rows, columns = family._squares_of_video(count, height, width)
        found = smart_resize(count, height, width, temporal_factor=2, factor=8, **limits(folder))
        assert (rows * 8, columns * 8) == found, (count, height, width)


def test_a_video_between_images(folder_of: FolderOf) -> None:
    """Also a placeholder without the tokens around it."""
    image = prompt_pb2.Media(data=file_of(picture(40, 30)))
    media = (image, video(2)[1], image, video(2)[1])
    _, items = expanded(folder_of("qwen3_vl"), f"{IMAGE}{VIDEO}{IMAGE}<|video_pad|>", *media)
    assert [len(item.shape) for item in items] == [3, 4, 3, 4]


@pytest.mark.parametrize(
    ("family", "prompt", "makes_video", "problem"),
    [
        ("qwen3_vl", IMAGE, True, "is a video, and the prompt has an image in its place"),
        ("qwen3_vl", VIDEO, False, "is an image, and the prompt has a video in its place"),
        ("qwen2_5_vl", IMAGE, True, "is not served: the model sees no videos"),
    ],
)
def test_another_medium_than_the_prompts(
    family: str, prompt: str, makes_video: bool, problem: str, folder_of: FolderOf
) -> None:
    medium = video(2)[1] if makes_video else prompt_pb2.Media(data=file_of(picture(40, 30)))
    with pytest.raises((InvalidRequest, Unsupported), match=problem):
        expanded(folder_of(family), prompt, medium)


def test_frames_that_cannot_be_read_or_differ(folder_of: FolderOf) -> None:
    _, medium = video(2)
    medium.frames.files[1] = file_of(picture(71, 50))
    with pytest.raises(InvalidRequest, match="different sizes"):
        expanded(folder_of("qwen3_vl"), VIDEO, medium)
    medium.frames.files[1] = b"no file"
    with pytest.raises(InvalidRequest, match=r"frames\.files\[1\]"):
        expanded(folder_of("qwen3_vl"), VIDEO, medium)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"video_processor_type": "OtherVideoProcessor"}, "no video processor OtherVideoProcessor"),
        ({"image_mean": [0.1, 0.1, 0.1]}, "image_mean is not that of images"),
        ({"patch_size": 8}, "takes other patches"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame is true"),
        (None, "no video processor"),
    ],
)
def test_a_checkpoint_without_videos_says_why(
    changes: dict[str, Any] | None, why: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    shutil.copytree(folder_of("qwen3_vl"), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "video_preprocessor_config.json"
    if changes is None:
        file.unlink()
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(Unsupported, match=why):
        expanded(tmp_path, VIDEO, video(2)[1])
    assert expanded(tmp_path, IMAGE, prompt_pb2.Media(data=file_of(picture(40, 30))))[1]
