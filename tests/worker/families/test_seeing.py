"""Encoders of images in config.json and in checkpoints: what is read, by which names, and what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from tests.vision_models import FAMILIES, make_vision_model
from tests.worker.fakes import Driver
from tests.worker.vision.images import make_image
from tests.worker.vision.test_parity import VARIANTS
from worker.families.registry import decoder_of, read_model_config
from worker.families.seeing import SEEING
from worker.startup.checks import check_stages
from worker.vision.tower import bucketed_positions


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_vision_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def edited(folder: Path, target: Path, file: str = "config.json", **changes: Any) -> Path:
    """Copies the files that a configuration is read from, with other fields; None leaves one out. A name with
    a dot is that of a field of an object."""
    target.mkdir()
    for path in folder.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    values = json.loads((target / file).read_text())
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = values
        for each in outer:
            place = place[each]
        place[last] = value
        if value is None:
            del place[last]
    (target / file).write_text(json.dumps(values))
    return target


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("llava", {"vision_config__model_type": "dinov2"}, "model_type is .* clip_vision_model, siglip"),
        ("llava", {"vision_config__hidden_act": "swiglu"}, "hidden_act"),
        ("llava", {"vision_config__num_channels": 1}, "num_channels"),
        ("llava", {"vision_config__num_attention_heads": 3}, "must divide hidden_size"),
        ("llava", {"vision_config__head_dim": 8}, "head_dim is 8"),
        ("llava", {"vision_config__patch_size": [14, 7]}, "patch_size"),
        ("llava", {"vision_config__image_size": 7}, "image_size"),
        ("llava", {"vision_config__pre_norm": True}, "pre_norm"),
        ("llava", {"vision_feature_layer": 4}, "vision_feature_layer"),
        ("llava", {"vision_feature_layer": 0}, "vision_feature_layer"),
        ("llava", {"vision_feature_layer": [-1, 3]}, "each once"),
        ("llava", {"vision_feature_select_strategy": "cls"}, "vision_feature_select_strategy"),
        ("llava", {"projector_hidden_act": "swiglu"}, "projector_hidden_act"),
        ("llava", {"text_config__model_type": "mamba"}, "no decoder of that type"),
        ("llava", {"text_config__model_type": "opt"}, "no decoder of that type"),
        ("llava", {"image_grid_pinpoints": [[1, 2]]}, "image_grid_pinpoints"),
        ("pixtral", {"vision_feature_select_strategy": "default"}, "no class token"),
        ("pixtral", {"vision_config__rope_parameters__rope_type": "yarn"}, "rope_type"),
        ("pixtral", {"vision_config__num_attention_heads": 16, "vision_config__head_dim": 2}, "of 4"),
        ("mistral3", {"vision_feature_layer": [-1, -2]}, "takes one layer"),
        ("idefics3", {"scale_factor": 3}, "squares of 3"),
        ("idefics3", {"text_config__use_resampler": True}, "use_resampler"),
        ("smolvlm", {"vision_config__model_type": "idefics3_vision"}, "smolvlm_vision"),
        ("gemma3", {"mm_tokens_per_image": 5}, "mm_tokens_per_image is 5"),
        ("gemma3", {"mm_tokens_per_image": 9}, "divides 4 patches"),
        ("gemma3", {"text_config__use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma4", {"vision_config__num_key_value_heads": 1}, "there are 2 heads of queries"),
        ("gemma4", {"vision_config__head_dim": None}, "must be hidden_size"),
        ("gemma4", {"vision_config__rope_parameters__rope_type": "yarn"}, "only axial"),
        ("gemma4", {"vision_config__hidden_activation": "swiglu"}, "hidden_activation"),
        ("gemma4", {"text_config__model_type": "gemma3_text"}, "no decoder of that type"),
        ("gemma4", {"text_config__pad_token_id": 340}, "vocab_size_per_layer_input"),
        ("gemma4_unified", {"vision_config__output_proj_dims": 48}, "mm_embed_dim is 40"),
        ("gemma4_unified", {"vision_config__hidden_act": "gelu"}, "hidden_act"),
        ("internvl", {"downsample_ratio": 0.4}, "downsample_ratio"),
        ("llama4", {"vision_config__pixel_shuffle_ratio": 0.3}, "pixel_shuffle_ratio"),
        ("llama4", {"vision_config__intermediate_size": 120}, "have 128 values"),
        ("llama4", {"vision_config__vision_output_dim": 41}, "projector_input_dim is 40"),
        ("llama4", {"vision_config__hidden_act": "silu"}, "hidden_act"),
        ("llama4", {"vision_config__multi_modal_projector_bias": True}, "multi_modal_projector_bias"),
        ("llama4", {"text_config__model_type": "llama"}, "no decoder of that type"),
        ("internvl", {"vision_feature_select_strategy": "full"}, "in no square"),
        ("internvl", {"vision_config__norm_type": "batch_norm"}, "norm_type"),
        ("qwen2_5_vl", {"text_config__rope_parameters__mrope_section": [2, 2, 3]}, "have 6 frequencies"),
        ("qwen2_5_vl", {"text_config__rope_parameters__mrope_interleaved": True}, "it is false here"),
        ("qwen2_5_vl", {"text_config__rope_parameters__rope_theta": None}, "rope_theta"),
        ("qwen2_5_vl", {"text_config__model_type": "llama"}, "no decoder of that type"),
        ("qwen2_5_vl", {"vision_config__window_size": 7}, "window_size"),
        ("qwen2_5_vl", {"vision_config__out_hidden_size": 64}, "the decoder has 48"),
        ("qwen3_vl", {"vision_config__num_position_embeddings": 15}, "must be a square"),
        ("qwen3_vl", {"vision_config__deepstack_visual_indexes": [0, 3]}, "blocks below 3"),
        ("qwen3_vl", {"vision_config__deepstack_visual_indexes": [2, 0]}, "ascending order"),
        ("qwen3_vl", {"vision_config__deepstack_visual_indexes": [0, 1, 2]}, "has 2 layers"),
        ("qwen3_vl_moe", {"text_config__norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_5", {"vision_config__deepstack_visual_indexes": [1]}, "no such layers"),
        ("qwen2_vl", {"vision_config__hidden_size": 64}, "the decoder has 48"),
        ("qwen2_vl", {"vision_config__in_channels": 4}, "in_channels"),
    ],
)
def test_fields_that_no_family_has_are_refused(
    family: str, changes: dict[str, Any], problem: str, folders: dict[str, Path], tmp_path: Path
):
    with pytest.raises(StartupError, match=problem):
        read_model_config(edited(folders[family], tmp_path / "edited", **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"image_mean": None}, "image_mean"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std"),
        ({"rescale_factor": "1/255"}, "rescale_factor"),
    ],
)
def test_pixels_that_become_nothing_known_are_refused(
    changes: dict[str, Any], problem: str, folders: dict[str, Path], tmp_path: Path
):
    folder = edited(folders["llava"], tmp_path / "edited", "preprocessor_config.json", **changes)
    with pytest.raises(StartupError, match=problem):
        read_model_config(folder)


def test_what_pixels_become_is_in_one_of_two_files(folders: dict[str, Path], tmp_path: Path):
    folder = edited(folders["llava"], tmp_path / "edited")
    expected = read_model_config(folder).vision
    processor = folder / "preprocessor_config.json"
    whole = {"processor_class": "LlavaProcessor", "image_processor": json.loads(processor.read_text())}
    (folder / "processor_config.json").write_text(json.dumps(whole))
    processor.unlink()
    assert read_model_config(folder).vision == expected
    (folder / "processor_config.json").write_text("{}")
    assert read_model_config(folder).vision is None


def test_pixels_of_gemma_4_are_centered_by_the_model(folders: dict[str, Path], tmp_path: Path):
    file, folder = "preprocessor_config.json", folders["gemma4"]
    vision = read_model_config(folder).vision
    assert vision is not None and vision.max_vectors == 70 and vision.tower.clipped
    assert vision.pixels.mean == vision.pixels.std == (0.5, 0.5, 0.5)
    same = read_model_config(edited(folder, tmp_path / "same", file, do_normalize=True)).vision
    assert same == vision
    with pytest.raises(StartupError, match="do_normalize"):
        read_model_config(edited(folder, tmp_path / "odd", file, do_normalize=True, image_mean=[0.5] * 3))


def test_images_that_have_more_rows_than_there_are_positions(folders: dict[str, Path]):
    vision = read_model_config(folders["gemma4"]).vision
    assert vision is not None
    assert [vision.num_vectors(8, width) for width in (640, 648, 12)] == [80, 0, 0]


def test_layers_in_which_images_are_seen_whole(folders: dict[str, Path], tmp_path: Path):
    """Gemma 4: those with windows, in checkpoints that say so."""
    assert read_model_config(folders["gemma4"]).whole_images == (False,) * 4
    fields = {"text_config__use_bidirectional_attention": "vision"}
    folder = edited(folders["gemma4"], tmp_path / "edited", **fields)
    assert read_model_config(folder).whole_images == (True, False) * 2
    fields = {"text_config__use_bidirectional_attention": None, "text_config__sliding_window": None}
    unsaid = read_model_config(edited(folders["gemma4_unified"], tmp_path / "unsaid", **fields))
    assert unsaid.whole_images == (False, True, False) and unsaid.windows == (None, 1024, None)


def test_bounds_may_be_infinite_and_no_number_may_be_none(folders: dict[str, Path], tmp_path: Path):
    folder = edited(folders["gemma4"], tmp_path / "edited")
    tensors = load_file(folders["gemma4"] / "model.safetensors")
    bounds = {name for name in tensors if name.endswith(("put_min", "put_max"))}
    assert {bool(tensors[name].isinf()) for name in bounds} == {True, False}
    tensors[min(bounds)] = torch.tensor(torch.nan)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StartupError, match="holds NaN"):
        Driver(folder, dtype="float32")


def test_sizes_that_published_files_leave_out(folders: dict[str, Path], tmp_path: Path):
    """Those of LLaVA 1.5 say few fields of the decoder, and those of Pixtral few of the tower."""
    text = {"model_type": "llama", "vocab_size": 32064, "rms_norm_eps": 1e-5, "torch_dtype": "float16"}
    llava = read_model_config(edited(folders["llava"], tmp_path / "llava", text_config=text))
    assert (llava.hidden_size, llava.num_layers, llava.num_heads) == (4096, 32, 32)
    assert llava.decoder == "LlamaForCausalLM" and llava.vocab_size == 32064
    tower = {"model_type": "pixtral", "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0}
    tower |= {"is_composition": True, "head_dim": 64, "hidden_act": "silu"}
    pixtral = read_model_config(edited(folders["pixtral"], tmp_path / "pixtral", vision_config=tower))
    assert pixtral.vision is not None
    assert (pixtral.vision.tower.hidden_size, pixtral.vision.tower.num_layers) == (1024, 24)
    assert pixtral.vision.max_vectors == 4096


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("smolvlm", {"vision_config__use_base_siglip": False, "image_seq_len": 81}),
        (
            "gemma4",
            {"vision_config__default_output_length": 280, "vision_config__global_head_dim": 16}
            | {"vision_config__rope_parameters__rope_type": "default", "vision_soft_tokens_per_image": 280},
        ),
        ("gemma4_unified", {"vision_config__num_soft_tokens": 280, "vision_config__model_patch_size": 8}),
    ],
)
def test_fields_of_published_files_that_change_nothing(
    family: str, fields: dict[str, Any], folders: dict[str, Path], tmp_path: Path
):
    """Those of SmolVLM and SmolVLM2, and of Gemma 4."""
    expected = read_model_config(folders[family])
    assert read_model_config(edited(folders[family], tmp_path / "edited", **fields)) == expected


def test_the_first_files_of_qwen(folders: dict[str, Path], tmp_path: Path):
    """They have the decoder's fields beside the others, its rotary ones under an older name, and the most
    pixels of an image in a field of its own."""
    folder, values = folders["qwen2_5_vl"], json.loads((folders["qwen2_5_vl"] / "config.json").read_text())
    text = values["text_config"]
    rope = text.pop("rope_parameters")
    changes = {**text, "text_config": None, "model_type": "qwen2_5_vl", "rope_theta": rope["rope_theta"]}
    changes["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    changes |= {"vision_token_id": 7, "sliding_window": 32768, "vision_config__in_chans": 3}
    changes |= {"vision_config__spatial_patch_size": 4, "vision_config__model_type": None}
    flat = edited(folder, tmp_path / "flat", **changes)
    found, expected = read_model_config(flat), read_model_config(folder)
    assert expected.vision is not None and expected.vision.max_vectors == 36
    assert replace(found, vision=expected.vision, sizes=[]) == expected
    pixels = edited(flat, tmp_path / "pixels", "preprocessor_config.json", size=None, max_pixels=128)
    limited = read_model_config(pixels).vision
    assert limited is not None and limited.max_vectors == 2
    with pytest.raises(StartupError, match="8 x 8 pixels"):
        edited(flat, tmp_path / "few", "preprocessor_config.json", size=None, max_pixels=63)
        read_model_config(tmp_path / "few")


def test_fields_that_some_files_of_qwen_repeat(folders: dict[str, Path], tmp_path: Path):
    """Those of the text beside it, and tokens of images in it: what is within text_config counts."""
    folder, values = folders["qwen2_5_vl"], json.loads((folders["qwen2_5_vl"] / "config.json").read_text())
    repeated = {name: value for name, value in values["text_config"].items() if name != "model_type"}
    changes = {**repeated, "text_config__vision_start_token_id": 7, "text_config__vision_end_token_id": 8}
    found = read_model_config(edited(folder, tmp_path / "made", **changes | {"hidden_size": 99}))
    assert replace(found, sizes=[]) == replace(read_model_config(folder), sizes=[])
    with pytest.raises(StartupError, match="odd"):
        read_model_config(edited(folder, tmp_path / "odd", odd=1))


def test_pixels_are_those_of_the_file_that_the_frontend_reads(folders: dict[str, Path], tmp_path: Path):
    """processor_config.json goes before preprocessor_config.json, as with transformers."""
    images = json.loads((folders["llava"] / "preprocessor_config.json").read_text())
    images["image_mean"] = [0.1, 0.2, 0.3]
    both = edited(folders["llava"], tmp_path / "both", "processor_config.json", image_processor=images)
    vision = read_model_config(both).vision
    assert vision is not None and vision.pixels.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("names", ["", "a model"])
def test_a_head_that_differs_from_the_embedding_that_it_is_tied_to(
    names: str, folders: dict[str, Path], tmp_path: Path
):
    fields = {"tie_word_embeddings": True, "text_config__tie_word_embeddings": True}
    folder = edited(folders["llava"], tmp_path / "edited", **fields)
    tensors = load_file(folders["llava"] / "model.safetensors")
    for pattern, replacement in RENAMED[names] if names else ():
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    assert any(name.endswith("lm_head.weight") for name in tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StartupError, match="ties the head to the embedding"):
        Driver(folder, dtype="float32")


def test_vectors_that_are_kept_have_memory(folders: dict[str, Path]):
    vision = Driver(folders["llava"], dtype="float32").runner.backend.model.vision
    initialize = worker_pb2.Initialize(max_num_batched_tokens=8)
    assert vision.kept_bytes(initialize) == 16 * 48 * 4
    initialize.max_num_batched_tokens = 32
    assert vision.kept_bytes(initialize) == 32 * 48 * 4
    initialize.encoder_cache_tokens = 100
    assert vision.kept_bytes(initialize) == 100 * 48 * 4


def test_an_encoder_has_memory_for_images_that_are_accepted(folders: dict[str, Path]):
    """Of any size up to that which is prepared, or has as many vectors as are kept."""
    vision = Driver(folders["qwen3_vl"], dtype="float32").runner.backend.model.vision
    initialize = worker_pb2.Initialize(max_num_batched_tokens=8)
    assert vision.kept_bytes(initialize) == 36 * 3 * 48 * 4
    largest = vision.activation_bytes(initialize)
    initialize.encoder_cache_tokens = 9
    assert vision.kept_bytes(initialize) == 9 * 3 * 48 * 4
    assert vision.activation_bytes(initialize) * 4 == largest
    initialize.encoder_cache_tokens = 1000
    assert vision.activation_bytes(initialize) == largest


def test_decoders_by_the_type_of_their_configuration():
    assert decoder_of("qwen3_moe") == "Qwen3MoeForCausalLM"
    assert decoder_of("gemma3_text") == "Gemma3ForCausalLM"
    assert decoder_of("gpt2") == "GPT2LMHeadModel"
    assert [decoder_of(name) for name in ("bert", "gemma4_text", "opt", "")] == [None] * 4


RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    "a part": ((r"^vision_tower\.", "vision_tower.vision_model."),),
    "a model": (
        (r"^language_model\.model\.", "model.language_model."),
        (r"^language_model\.lm_head", "lm_head"),
        (r"^(vision_tower|multi_modal_projector)\.", r"model.\1."),
    ),
}
RENAMED["both"] = (*RENAMED["a part"], *RENAMED["a model"])
IN_A_MODEL = (r"^model\.", "model.language_model."), (r"^visual\.", "model.visual.")


@pytest.mark.parametrize("names", RENAMED)
def test_names_of_other_versions_of_transformers(names: str, folders: dict[str, Path], tmp_path: Path):
    """Tensors that nothing reads, of layers behind the last one that is needed, are there under them, too."""
    assert_read("llava", RENAMED[names], folders, tmp_path)


def test_names_of_qwen_in_models_of_transformers(folders: dict[str, Path], tmp_path: Path):
    assert_read("qwen2_5_vl", IN_A_MODEL, folders, tmp_path)


def assert_read(
    family: str, renamed: tuple[tuple[str, str], ...], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = edited(folders[family], tmp_path / "renamed")
    tensors = load_file(folders[family] / "model.safetensors")
    for pattern, replacement in renamed:
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    image = torch.from_numpy(make_image(family))
    found, expected = (Driver(each, dtype="float32") for each in (folder, folders[family]))
    with torch.inference_mode():
        assert torch.equal(*(each.runner.backend.model.vision(image) for each in (found, expected)))


def test_experts_of_published_files(folders: dict[str, Path], tmp_path: Path):
    """Qwen3-VL's are [N, in, out] there, and [N, out, in] where transformers 5 has written them."""
    folder = edited(folders["qwen3_vl_moe"], tmp_path / "published")
    tensors = load_file(folders["qwen3_vl_moe"] / "model.safetensors")
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." in name}
    assert len(stacked) == 4
    turned = {name: tensor.transpose(1, 2).contiguous() for name, tensor in stacked.items()}
    save_file(tensors | turned, folder / "model.safetensors")
    parameters = [
        Driver(each, dtype="float32").runner.backend.model.named_parameters()
        for each in (folders["qwen3_vl_moe"], folder)
    ]
    for (name, one), (_, other) in zip(*parameters, strict=True):
        assert torch.equal(one, other), name


def test_a_tensor_of_the_tower_that_is_missing_or_unknown_is_named(folders: dict[str, Path], tmp_path: Path):
    folder = edited(folders["llava"], tmp_path / "edited")
    tensors = load_file(folders["llava"] / "model.safetensors")
    bias = tensors.pop("vision_tower.encoder.layers.1.mlp.fc1.bias")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StartupError, match=r"encoder\.layers\.1\.mlp\.fc1\.bias"):
        Driver(folder)
    save_file(
        tensors | {"vision_tower.encoder.layers.1.mlp.fc1.bias": bias, "odd": bias.clone()},
        folder / "model.safetensors",
    )
    with pytest.raises(StartupError, match="odd"):
        Driver(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_and_integers(family: str, folders: dict[str, Path]):
    """--load-format dummy; --quantization int8, which rounds the products of the tower as those of the
    decoder."""
    image = torch.from_numpy(make_image(family))
    for changes in ({"load_format": "dummy"}, {"quantization": "int8", "dtype": "bfloat16"}):
        driver = Driver(folders[family], block_size=16, **changes)
        with torch.inference_mode():
            found = driver.runner.backend.model.vision(image)  # type: ignore[attr-defined]
        assert found.isfinite().all()
        assert driver.ready.max_item_vectors >= len(found) > 0


def test_stages_do_not_encode(folders: dict[str, Path]):
    config = read_model_config(folders["llava"])
    check_stages(config, 1)
    with pytest.raises(StartupError, match="encodes images"):
        check_stages(config, 2)


def test_every_family_is_tested():
    prefixes = [each["class"] for each in FAMILIES.values()]
    prefixes += [changes["prefix"] for _, changes in VARIANTS.values() if "prefix" in changes]
    assert {f"{each}ForConditionalGeneration" for each in prefixes} == SEEING.keys()


@pytest.mark.parametrize(
    ("family", "decoder"), [("qwen3_5", "Qwen3_5ForCausalLM"), ("gemma4", "Gemma4ForCausalLM")]
)
def test_text_alone(family: str, decoder: str, folders: dict[str, Path], tmp_path: Path):
    """Over several stages, and where no file says what pixels become."""
    config = read_model_config(folders[family])
    assert config.vision is not None and config.decoder == decoder
    assert read_model_config(folders[family], stages=2).vision is None
    folder = edited(folders[family], tmp_path / "text")
    (folder / "preprocessor_config.json").unlink()
    assert read_model_config(folder).vision is None


@pytest.mark.parametrize("family", ["gemma3", "llava", "idefics3", "qwen3_vl"])
def test_text_of_checkpoints_without_files_of_the_processor(
    family: str, folders: dict[str, Path], tmp_path: Path
):
    """It has the same bits; tensors of the encoder may be there or not, under any names that they have."""
    whole, text = folders[family], edited(folders[family], tmp_path / "text")
    (text / "preprocessor_config.json").unlink()
    tensors = load_file(whole / "model.safetensors")
    if family == "llava":
        for pattern, replacement in RENAMED["both"]:
            tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    if family == "idefics3":
        tensors = {name: tensor for name, tensor in tensors.items() if "vision_model" not in name}
    save_file(tensors, text / "model.safetensors")
    found, expected = (Driver(folder, dtype="float32", block_size=16) for folder in (text, whole))
    assert not found.ready.model.media_kinds and not found.ready.model.whole_media
    assert expected.ready.model.media_kinds
    sequences = [driver.add([5, 100, 317, 210], 3)[0] for driver in (found, expected)]
    for driver in (found, expected):
        driver.run()
    assert all(map(torch.equal, *(sequence.logits for sequence in sequences)))


def test_positions_of_a_side_that_is_no_power_of_two():
    """Fractions of a side are rounded: some patches share a row of the table."""
    assert bucketed_positions(4).tolist() == list(range(16))
    assert len(set(bucketed_positions(26).tolist())) <= 26**2


def test_adapters_of_the_tower_are_known_as_such(folders: dict[str, Path], checkpoint: Callable[..., Path]):
    driver = Driver(folders["llava"])
    targets = driver.runner.backend.model.target_modules  # type: ignore[attr-defined]
    assert not any("vision" in module or "projector" in module for module in targets.targets)
    assert targets.is_unsupported("multi_modal_projector.linear_1")
    plain = Driver(checkpoint("llama", num_hidden_layers=2))
    expected = plain.runner.backend.model.target_modules.targets  # type: ignore[attr-defined]
    assert targets.targets.keys() == expected.keys()


def test_sizes_that_gemma3_leaves_out(folders: dict[str, Path], tmp_path: Path):
    """As in its class."""
    left_out = {f"text_config__{name}": None for name in ("num_attention_heads", "vocab_size")}
    config = read_model_config(edited(folders["gemma3"], tmp_path / "edited", **left_out))
    assert (config.num_heads, config.vocab_size, config.whole_images) == (8, 262208, (True, True))
