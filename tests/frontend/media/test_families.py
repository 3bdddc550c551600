"""Pixels and tokens are transformers' own, bit for bit."""

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers

from frontend.media.checkpoint import read_images
from frontend.media.decode import decode, open_image
from frontend.text.tokenizer import Tokenizer
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.media import media_digest
from pagewire.v1 import prompt_pb2
from tests.frontend.media.conftest import FolderOf, read
from tests.frontend.media.llama4_judge import Llama4Judge
from tests.frontend.media.pictures import MODES, file_of, picture
from tests.vision_models import FAMILIES, placeholder, vector_token

SIZES = [
    *((1, 1), (1, 7), (5, 3), (17, 31), (28, 28), (32, 32), (33, 32), (56, 56), (57, 56), (64, 64)),
    *((65, 64), (100, 33), (33, 100), (190, 2), (2, 190), (128, 96), (31, 200), (224, 224), (333, 77)),
    (320, 240),
]
PROCESSOR = {
    "Gemma3": "gemma3.processing_gemma3",
    "Gemma4": "gemma4.processing_gemma4",
    "Gemma4Unified": "gemma4_unified.processing_gemma4_unified",
    "Idefics3": "idefics3.processing_idefics3",
    "InternVL": "internvl.processing_internvl",
    "Llama4": "llama4.processing_llama4",
    "Llava": "llava.processing_llava",
    "Pixtral": "pixtral.processing_pixtral",
    "Qwen2VL": "qwen2_vl.processing_qwen2_vl",
    "Qwen3VL": "qwen3_vl.processing_qwen3_vl",
    "Qwen2_5_VL": "qwen2_5_vl.processing_qwen2_5_vl",
    "SmolVLM": "smolvlm.processing_smolvlm",
}


def sizes_of(family: str) -> list[tuple[int, int]]:
    """Returns sizes that transformers can resize: one pixel is the least that it leaves of a side."""
    if family not in ("pixtral", "mistral3"):
        return SIZES
    longest = FAMILIES[family]["images"]["size"]["longest_edge"]
    return [size for size in SIZES if min(size) * longest >= max(size)]


def judge(folder: Path) -> Any:
    """Returns transformers' image processor that computes with Pillow; Llama 4 has no other than that of
    torchvision. That of Gemma 4 12B prepares the pixels of Gemma 4's."""
    values = read(folder, "preprocessor_config.json")
    if values["image_processor_type"] == "Llama4ImageProcessor":
        return Llama4Judge(values)
    kind = getattr(transformers, values["image_processor_type"].replace("Unified", "") + "Pil")
    return kind.from_dict(values)


def processed(family: str, folder: Path, image: Any) -> dict[str, Any]:
    """Returns what transformers makes of one image."""
    files = read(folder, "processor_config.json")
    options = {}
    if family in ("idefics3", "smolvlm"):
        options["return_row_col_info"] = True
    if files["processor_class"] == "PixtralProcessor":
        options["patch_size"] = files["patch_size"] * files.get("spatial_merge_size", 1)
    found = judge(folder)(image, return_tensors="np", **options)
    return dict(found)


def images_of(found: dict[str, Any], options: dict[str, Any]) -> Any:
    """Returns images [n, 3, height, width] of what processed() returns."""
    values = found["pixel_values"]
    if (places := found.get("image_position_ids")) is not None:
        (columns, rows), size = places[0].max(0) + 1, options["patch_size"]
        cut = values[0, : rows * columns].reshape(rows, columns, size, size, 3)
        assert (places[0, rows * columns :] == -1).all()
        return cut.transpose(4, 0, 2, 1, 3).reshape(1, 3, rows * size, columns * size)
    if (grids := found.get("image_grid_thw")) is None:
        return values.reshape(-1, *values.shape[-3:])
    (frames, rows, columns), size, merge = grids[0], options["patch_size"], options["merge_size"]
    assert frames == 1
    cut = values.reshape(rows // merge, columns // merge, merge, merge, 3, -1, size, size)
    assert all(np.array_equal(cut[..., :1, :, :], cut[..., frame : frame + 1, :, :]) for frame in (0, 1))
    whole = cut[..., 0, :, :].transpose(4, 0, 2, 5, 1, 3, 6)
    return whole.reshape(1, 3, rows * size, columns * size)


def text_of(family: str, folder: Path, inputs: dict[str, Any]) -> str:
    """Returns the text that transformers' processor puts in place of an image."""
    name = read(folder, "processor_config.json")["processor_class"].removesuffix("Processor")
    # That of Pixtral imports the image processor that computes with torchvision, for sizes alone.
    torch_alone = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules.setdefault(torch_alone, importlib.import_module("_pil_".join(torch_alone.rsplit("_", 1))))
    module = importlib.import_module(f"transformers.models.{PROCESSOR[name]}")
    tokens = dict(FAMILIES[family]["tokens"])
    fields = {
        "spatial_merge_size": 1,
        **tokens,
        **read(folder, "processor_config.json"),
        "image_token": placeholder(family),
    }
    if family == "gemma3":
        vectors = tokens["image_token"] * fields["image_seq_length"]
        fields["full_image_sequence"] = f"\n\n{tokens['boi_token']}{vectors}{tokens['eoi_token']}\n\n"
    made = getattr(module, f"{name}Processor")
    if family == "llama4":
        fields["downsample_ratio"] = round(1 / fields["pixel_shuffle_ratio"] ** 2)
        fields["_prompt_split_image"] = partial(made._prompt_split_image, None)
    fields["global_image_tag"] = tokens.get("global_image_token")
    merge = read(folder, "preprocessor_config.json").get("merge_size")
    fields["image_processor"] = SimpleNamespace(merge_size=merge)
    text: str = made.replace_image_token(SimpleNamespace(**fields), inputs, 0)
    return text


def expanded(folder: Path, prompt: str, *files: bytes) -> tuple[list[int], list[engine_pb2.MediaItem]]:
    """Returns the tokens of a prompt and its items."""
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    images = read_images(folder, read(folder, "config.json"), tokenizer)
    assert images.reader is not None, images.caveat
    media = [(f"prompt.media[{place}]", prompt_pb2.Media(data=file)) for place, file in enumerate(files)]
    encoding = tokenizer.encode(prompt, add_special_tokens=False)
    encoding, items = images.reader.expand(encoding, media, "prompt.media")
    return list(encoding.token_ids), items


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_are_those_of_transformers(family: str, folder_of: FolderOf) -> None:
    folder = folder_of(family)
    processor, options = judge(folder), read(folder, "preprocessor_config.json")
    for number, size in enumerate(sizes_of(family)):
        mode = MODES[number % len(MODES)]
        image = picture(*size, mode)
        _, items = expanded(folder, placeholder(family), file_of(image))
        wanted = images_of(processed(family, folder, image), options)
        assert len(items) == len(wanted), (size, mode)
        for item, values in zip(items, wanted, strict=True):
            pixels = np.frombuffer(item.data, np.uint8).reshape(item.shape).transpose(2, 0, 1)
            scaled = processor.rescale(pixels, options["rescale_factor"])
            ours = processor.normalize(scaled, options["image_mean"], options["image_std"])
            assert ours.dtype == values.dtype and np.array_equal(ours, values), (size, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llava", "idefics3"])
def test_all_modes_at_one_size(family: str, mode: str, folder_of: FolderOf) -> None:
    image = picture(61, 47, mode)
    shown = judge(folder_of(family)).process_image(decode(open_image(file_of(image))), do_convert_rgb=True)
    assert np.array_equal(shown, judge(folder_of(family)).process_image(image, do_convert_rgb=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(family: str, folder_of: FolderOf) -> None:
    folder, token = folder_of(family), placeholder(family)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for size in sizes_of(family):
        image = picture(*size)
        text = text_of(family, folder, processed(family, folder, image))
        wanted = tokenizer.encode(f"See: {text}\nwhat?{text}.", add_special_tokens=False).ids
        ids, items = expanded(folder, f"See: {token}\nwhat?{token}.", file_of(image), file_of(image))
        assert ids == wanted, size
        positions = [position for item in items for position in unpack_u32(item.positions)]
        image_id = tokenizer.token_to_id(vector_token(family))
        assert positions == [place for place, each in enumerate(ids) if each == image_id]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_item_has_the_digest_of_its_pixels(family: str, folder_of: FolderOf) -> None:
    _, items = expanded(folder_of(family), placeholder(family), file_of(picture(90, 60)))
    for item in items:
        assert item.kind == engine_pb2.MEDIA_KIND_IMAGE
        assert len(item.data) == item.shape[0] * item.shape[1] * 3 and item.shape[2] == 3
        assert item.digest == media_digest(item.kind, item.shape, item.data)


@pytest.mark.parametrize("processor_type", ["LlavaImageProcessor", "CLIPImageProcessor"])
def test_llava_pads_to_a_square_where_its_processor_does(
    processor_type: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    folder = folder_of("llava")
    for name in ("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    values = read(folder, "preprocessor_config.json")
    values |= {"image_processor_type": processor_type, "do_pad": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    for size in SIZES:
        image = picture(*size)
        _, (item,) = expanded(tmp_path, "<image>", file_of(image))
        wanted = processed("llava", tmp_path, image)["pixel_values"][0]
        pixels = np.frombuffer(item.data, np.uint8).reshape(item.shape).transpose(2, 0, 1)
        processor = judge(tmp_path)
        scaled = processor.rescale(pixels, values["rescale_factor"])
        assert np.array_equal(processor.normalize(scaled, values["image_mean"], values["image_std"]), wanted)


def test_the_token_of_a_class_is_the_encoders_where_no_file_counts_it(
    folder_of: FolderOf, tmp_path: Path
) -> None:
    """Processors of transformers 4.44 to 4.46 state a patch size and no number of additional tokens."""
    folder = folder_of("llava")
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    stated = read(folder, "processor_config.json")
    del stated["num_additional_image_tokens"]
    (tmp_path / "processor_config.json").write_text(json.dumps(stated))
    tokens, _ = expanded(tmp_path, "<image>", file_of(picture(90, 60)))
    assert len(tokens) == 16


RUNS = ["a{0}b", "a\n{0}\nb", "{0}{0}", "\n\n{0}\n{0}\n\n", "\n{0}\n\n{0}a\n\n\n", "a\n\n\n\n\n{0} \n{0}"]


@pytest.mark.parametrize("prompt", RUNS)
def test_line_breaks_beside_an_image_are_tokenized_with_its_own(
    prompt: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    """Vocabularies of Gemma have tokens of several line breaks."""
    folder, token = folder_of("gemma3"), placeholder("gemma3")
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    runs = (tokenizers.AddedToken("\n" * count, normalized=False) for count in (2, 3, 4))
    tokenizer.add_tokens(list(runs))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    image = picture(40, 30)
    text = text_of("gemma3", tmp_path, processed("gemma3", tmp_path, image))
    wanted = tokenizer.encode(prompt.format(text), add_special_tokens=False).ids
    ids, items = expanded(tmp_path, prompt.format(token), *[file_of(image)] * prompt.count("{0}"))
    assert ids == wanted
    vector = tokenizer.token_to_id(vector_token("gemma3"))
    positions = [position for item in items for position in unpack_u32(item.positions)]
    assert positions == [place for place, each in enumerate(ids) if each == vector]
