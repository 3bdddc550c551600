"""Llama 4: the text of checkpoints that see images, what config.json may say, and queries by position."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Llama4Config, set_seed

from kernels.batch import InputBatch
from pagewire.errors import StartupError
from tests.checkpoints import FAMILIES, VOCAB_SIZE
from tests.worker.fakes import Driver
from worker.config.decoder import DecoderConfig, TemperatureConfig
from worker.families.registry import read_model_config
from worker.layers.attention.rotary import QueryTemperature

VISION = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}
SIZES = {
    "architectures": ["Llama4ForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 40,
    "intermediate_size_mlp": 72,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
}


@pytest.mark.parametrize("shape", [{}, {"num_experts_per_tok": 3, "moe_layers": [2], "use_qk_norm": False}])
@torch.inference_mode()
def test_text_beside_images(shape: dict[str, Any], tmp_path: Path):
    """The decoder is a part of the checkpoint, and its configuration of config.json; what sees images is not
    read."""
    text = FAMILIES["llama4"][1] | {"vocab_size": VOCAB_SIZE, "pad_token_id": 0} | shape
    set_seed(3)
    model = AutoModelForImageTextToText.from_config(
        Llama4Config(text_config=text, vision_config=VISION)
    ).eval()
    model.save_pretrained(tmp_path)
    prompt = [5 + 7 * i % 300 for i in range(21)]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=[])
    driver = Driver(tmp_path, record=False)
    sequence = driver.add(prompt, 6)[0]
    driver.run()
    assert sequence.output == expected[0, len(prompt) :].tolist()
    assert driver.ready.model.architecture == "Llama4ForConditionalGeneration"


def read(folder: Path, **fields: Any) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(SIZES | fields))
    config = read_model_config(folder)
    assert isinstance(config, DecoderConfig)
    return config


def test_what_files_leave_out(tmp_path: Path):
    """Every fourth layer sees everything and has no positions; the first files say 4 for true."""
    config = read(tmp_path, attn_temperature_tuning=4, no_rope_layers=[], for_llm_compressor=False)
    assert config.windows == (8192, 8192, 8192, None) * 2 and config.chunked
    assert [rope is None for rope in config.ropes] == [False, False, False, True] * 2
    assert config.temperature == TemperatureConfig(scale=0.1, floor_scale=8192)
    assert all(experts is not None for experts in config.experts)
    dense = read(tmp_path, interleave_moe_layer_step=2, attention_chunk_size=None)
    assert [experts is None for experts in dense.experts] == [True, False] * 4
    assert dense.windows == (None,) * 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("no_rope_layers", [1, 0]),
        ("no_rope_layers", [1, 2] * 4),
        ("layer_types", ["sliding_attention"] * 8),
        ("attention_chunk_size", 0),
        ("num_experts_per_tok", 5),
        ("attn_temperature_tuning", "yes"),
        ("use_qk_norm", True),
    ],
)
def test_refused(field: str, value: Any, tmp_path: Path):
    """The field is named."""
    yarn = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}
    others = {"rope_parameters": yarn} if field == "use_qk_norm" else {}
    with pytest.raises(StartupError, match=field):
        read(tmp_path, **{field: value}, **others)


def test_queries_by_position():
    """The factor of a position is the same number whatever else is in the step."""
    layer = QueryTemperature(TemperatureConfig(scale=0.3, floor_scale=10), 100, 4, torch.device("cpu"))

    def factors(positions: list[int]) -> torch.Tensor:
        at = torch.tensor(positions)
        rotation = layer.rotation(InputBatch(token_ids=at, positions=at, prompt_lens=at, attention={}))
        assert rotation.queries_only and not rotation.sin.any()
        assert torch.equal(rotation.cos, rotation.cos[:, :1].expand(-1, 4))
        return rotation.cos[:, 0]

    every = factors(list(range(100)))
    assert every[:9].tolist() == [1.0] * 9
    assert every[58].item() == pytest.approx(1 + 0.3 * math.log(1 + 5), rel=1e-6)
    for position in (0, 9, 77, 99):
        assert torch.equal(factors([position])[0], every[position])
