"""Configurations of gated delta nets: what is read, and what is refused by the field's name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.families.registry import read_model_config

Checkpoints = Callable[..., Path]
CASES = {
    "groups of unequal size": (
        {"linear_num_value_heads": 3},
        "linear_num_value_heads is 3, but must be a multiple of linear_num_key_heads, 2",
    ),
    "one tap": ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1, but must be an integer of at"),
    "an unknown kind": (
        {"layer_types": ["linear_attention", "sliding_attention", "full_attention"]},
        "layer_types is .*, but must name linear_attention or full_attention once per hidden layer",
    ),
    "no attention": ({"layer_types": ["linear_attention"] * 3}, "must name full_attention at least once"),
    "attention in no layer": (
        {"layer_types": None, "full_attention_interval": 4},
        "full_attention_interval is 4, but must be at most num_hidden_layers, 3",
    ),
    "another activation": ({"hidden_act": "gelu"}, 'hidden_act is "gelu", but nothing else is supported'),
    "unknown": ({"linear_gate": 2}, "linear_gate is 2, but this field is not known"),
}


def read(checkpoint: Checkpoints, folder: Path, family: str, changes: dict[str, Any]) -> DecoderConfig:
    fields = json.loads((checkpoint(family) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | changes))
    config = read_model_config(folder)
    assert isinstance(config, DecoderConfig)
    return config


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, checkpoint: Checkpoints, tmp_path: Path):
    changes, message = CASES[case]
    with pytest.raises(StartupError, match=message):
        read(checkpoint, tmp_path, "qwen3_5", changes)


def test_which_layers_keep_a_state(checkpoint: Checkpoints, tmp_path: Path):
    """Those that the file names, or all but each fourth one."""
    config = read(checkpoint, tmp_path, "qwen3_next", {})
    assert [delta is not None for delta in config.deltas] == [True, False, True] and config.has_states
    config = read(checkpoint, tmp_path, "qwen3_next", {"layer_types": None, "num_hidden_layers": 5})
    assert [delta is None for delta in config.deltas] == [False, False, False, True, False]
    assert [rope is None for rope in config.ropes] == [True, True, True, False, True]
