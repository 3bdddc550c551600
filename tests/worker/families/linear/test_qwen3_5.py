"""Checkpoints of Qwen3.5 that see images: their text, as transformers computes it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, Qwen3_5Config, Qwen3_5MoeConfig, set_seed

from tests.checkpoints import FAMILIES, VOCAB_SIZE
from tests.worker.fakes import Driver

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}
ROTARY = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
    "mrope_interleaved": True,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("experts", [False, True])
@torch.inference_mode()
def test_text_beside_images(experts: bool, tied: bool, tmp_path: Path):
    """The decoder is a part of the checkpoint, and its configuration of config.json; what sees images is not
    read."""
    kind, family = (Qwen3_5MoeConfig, "qwen3_5_moe") if experts else (Qwen3_5Config, "qwen3_5")
    text = FAMILIES[family][1] | {"vocab_size": VOCAB_SIZE, "rope_parameters": ROTARY, "pad_token_id": 0}
    set_seed(3)
    config = kind(text_config=text, vision_config=VISION, tie_word_embeddings=tied)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(tmp_path)
    prompt = [5 + 7 * i % 300 for i in range(21)]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=[])
    driver = Driver(tmp_path, record=False)
    sequence = driver.add(prompt, 6)[0]
    driver.run()
    assert sequence.output == expected[0, len(prompt) :].tolist()
    assert driver.ready.model.architecture == config.architectures[0]
