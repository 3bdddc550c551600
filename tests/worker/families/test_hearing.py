"""Encoders of sounds in config.json and in checkpoints: what is read, by which names, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from tests.audio_models import FAMILIES, make_audio_model
from tests.worker.audio.test_parity import make_clip
from tests.worker.fakes import Driver
from tests.worker.families.test_seeing import edited
from worker.config.audio import AudioConfig
from worker.families.registry import read_model_config
from worker.startup.checks import check_stages


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_audio_model(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("qwen2_audio", {"audio_config__model_type": "whisper"}, "only this is known: qwen2_audio_encoder"),
        ("qwen2_audio", {"audio_config__encoder_attention_heads": 3}, "must divide hidden_size"),
        ("qwen2_audio", {"audio_config__head_dim": 8}, "head_dim is 8"),
        ("qwen2_audio", {"audio_config__num_key_value_heads": 1}, "there are 2 heads"),
        ("qwen2_audio", {"audio_config__scale_embedding": True}, "scale_embedding is true"),
        ("qwen2_audio", {"audio_config__activation_function": "swiglu"}, "activation_function"),
        ("qwen2_audio", {"audio_config__max_source_positions": 49}, "must be a multiple of 2"),
        ("qwen2_audio", {"audio_config__d_model": 1 << 30}, "d_model"),
        ("qwen2_audio", {"audio_config__pre_norm": True}, "pre_norm"),
        ("qwen2_audio", {"text_config__use_mrope": True}, "use_mrope is true"),
        ("qwen2_audio", {"text_config__model_type": "mamba"}, "no decoder of that type"),
        ("qwen2_audio", {"vision_feature_layer": 1}, "vision_feature_layer"),
        ("voxtral", {"audio_config__intermediate_size": 100}, "must be a multiple of hidden_size"),
        ("voxtral", {"projector_hidden_act": "swiglu"}, "projector_hidden_act"),
    ],
)
def test_what_would_change_results_is_refused_by_its_field(
    folders: dict[str, Path], tmp_path: Path, family: str, changes: dict[str, Any], problem: str
):
    folder = edited(folders[family], tmp_path / "edited", **changes)
    with pytest.raises(StartupError, match=problem):
        read_model_config(folder)


def test_sizes_that_are_not_said_are_those_of_the_class(folders: dict[str, Path], tmp_path: Path):
    unsaid = dict.fromkeys(f"audio_config__{name}" for name in ("d_model", "encoder_layers", "num_mel_bins"))
    unsaid |= {"audio_config__encoder_attention_heads": None, "text_config__num_key_value_heads": None}
    unsaid |= {"text_config__hidden_size": None, "text_config__num_attention_heads": None}
    config = read_model_config(edited(folders["qwen2_audio"], tmp_path / "edited", **unsaid))
    assert isinstance(config.vision, AudioConfig)
    assert (config.vision.hidden_size, config.vision.num_heads, config.vision.num_bins) == (1280, 20, 128)
    assert (config.hidden_size, config.num_heads, config.num_kv_heads) == (4096, 32, 32)


def test_stages_do_not_encode(folders: dict[str, Path]):
    with pytest.raises(StartupError, match="encodes images or sounds"):
        check_stages(read_model_config(folders["voxtral"]), 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_of_other_names(family: str, folders: dict[str, Path], tmp_path: Path):
    """Those that have all parts in a model; each tensor is needed."""
    folder = edited(folders[family], tmp_path / "edited")
    tensors = load_file(folders[family] / "model.safetensors")
    in_a_model = {
        re.sub(r"^language_model\.model\.", "model.language_model.", name)
        .replace("language_model.lm_head", "lm_head")
        .replace("audio_tower.", "model.audio_tower.")
        .replace("multi_modal_projector.", "model.multi_modal_projector."): tensor
        for name, tensor in tensors.items()
    }
    save_file(in_a_model, folder / "model.safetensors")
    clip = torch.from_numpy(make_clip(family))
    found, expected = (
        Driver(each, dtype="float32").runner.backend.model.vision  # type: ignore[attr-defined]
        for each in (folder, folders[family])
    )
    with torch.inference_mode():
        assert torch.equal(found(clip), expected(clip))
    lacking = "audio_tower.layers.1.self_attn.v_proj.bias"
    save_file({name: each for name, each in tensors.items() if name != lacking}, folder / "model.safetensors")
    with pytest.raises(StartupError, match=re.escape(lacking)):
        Driver(folder, dtype="float32")
