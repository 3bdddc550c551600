"""Gemma 4: the text of checkpoints that see and hear, what config.json may say, and the bits of a row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Gemma4Config, set_seed

from pagewire.errors import StartupError
from tests.checkpoints import FAMILIES, VOCAB_SIZE
from tests.eagle_heads import write_head
from tests.worker.fakes import Driver
from worker.config.gemma4 import Gemma4Config as OurConfig
from worker.families.registry import read_model_config

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 16,
}
EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
SIZES = {
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("shape", [{}, EXPERTS], ids=["dense", "experts"])
@torch.inference_mode()
def test_text_beside_images(shape: dict[str, Any], tmp_path: Path):
    """The decoder is a part of the checkpoint, and its configuration of config.json; the rest is not read."""
    text = FAMILIES["gemma4"][1] | {"vocab_size": VOCAB_SIZE, "pad_token_id": 0} | shape
    set_seed(3)
    config = Gemma4Config(text_config=text, vision_config=VISION, audio_config=None)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(tmp_path)
    prompt = [5 + 7 * i % 300 for i in range(21)]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=[])
    driver = Driver(tmp_path, record=False)
    sequence = driver.add(prompt, 6)[0]
    driver.run()
    assert sequence.output == expected[0, len(prompt) :].tolist()
    assert driver.ready.model.architecture == "Gemma4ForConditionalGeneration"


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("changes", [{}, {"attention_k_eq_v": True, "num_global_key_value_heads": 1}])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_same_bits_beside_other_rows(
    dtype: str, changes: dict[str, Any], checkpoint: Callable[..., Path]
):
    """A row alone and in small pieces, and among others: by the compiled kernels, and by torch where layers
    differ in their KV heads."""
    folder = checkpoint("gemma4", **changes)
    sizes = {"dtype": dtype, "block_size": 16, "num_blocks": 200, "max_num_seqs": 8}
    prompts = [[3 + (number + i) % 200 for i in range(1 + 9 * number)] for number in range(6)]
    driver = Driver(folder, budget=40, **sizes)
    together = [driver.add(prompt, 6)[0] for prompt in prompts]
    driver.run()
    for number, budget in ((1, 3), (5, 7)):
        alone = Driver(folder, budget=budget, **sizes)
        sequence = alone.add(prompts[number], 6)[0]
        alone.run()
        assert torch.equal(torch.stack(sequence.logits), torch.stack(together[number].logits))


@pytest.mark.cpu_kernels
def test_drafts_of_a_head(checkpoint: Callable[..., Path], tmp_path: Path):
    """A head reads the hidden states behind some layers; outputs stay."""
    folder = checkpoint("gemma4", hidden_size=64)
    head = write_head(tmp_path, folder, None)
    sizes = {"dtype": "float32", "block_size": 16, "num_blocks": 50, "record": False}
    heads = {"speculation": f"heads:{head},tokens=3", "room": 3}
    outputs = []
    for changes in ({}, heads):
        driver = Driver(folder, **sizes, **changes)
        sequence = driver.add(list(range(3, 30)), 12)[0]
        driver.run()
        outputs.append(sequence.output)
    assert driver.num_drafted > 0 and outputs[0] == outputs[1]


def read(folder: Path, **fields: Any) -> OurConfig:
    (folder / "config.json").write_text(json.dumps(SIZES | fields))
    config = read_model_config(folder)
    assert isinstance(config, OurConfig)
    return config


def test_what_files_leave_out(tmp_path: Path):
    """Every sixth layer sees everything, with heads of 512 values and angles for a quarter of them."""
    config = read(tmp_path, num_kv_shared_layers=2, use_bidirectional_attention="vision")
    assert config.windows == (512, 512, 512, 512, 512, None) * 2
    assert [config.kv_sizes(layer) for layer in (0, 5)] == [(2, 256), (2, 512)]
    assert [config.source_of(layer) for layer in (0, 9, 10, 11)] == [0, 9, 9, 5]
    rope = config.ropes[5]
    assert rope is not None and (rope.kind, rope.num_turning, rope.rotary_dim) == ("proportional", 64, 512)
    other = read(tmp_path, attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=64)
    assert other.kv_sizes(5) == (1, 64)
    alike = read(tmp_path, per_layer_config={}, head_dim=32)
    assert alike.kv_sizes(5) == (2, 32)
    fewer = read(tmp_path, per_layer_config={name: {"num_key_value_heads": 1} for name in ("5", "11")})
    assert fewer.kv_sizes(5) == (1, 256)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_kv_shared_layers", 12),
        ("use_bidirectional_attention", "all"),
        ("vocab_size_per_layer_input", 100),
        ("per_layer_config", {"5": {"head_dim": 64}}),
        ("per_layer_config", {"5": {"head_dim": 64}, "11": {"head_dim": 32}}),
        ("per_layer_config", {"0": {"head_dim": 64}}),
        ("num_global_key_value_heads", 3),
        ("layer_types", ["chunked_attention"] * 12),
        ("hidden_act", "silu"),
    ],
)
def test_refused(field: str, value: Any, tmp_path: Path):
    """The field is named."""
    with pytest.raises(StartupError, match="num_attention_heads" if "global" in field else field):
        read(tmp_path, attention_k_eq_v=True, **{field: value})
