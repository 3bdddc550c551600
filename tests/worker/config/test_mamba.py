"""Configurations of Mamba-2 layers: what is read, and what is refused by the field's name."""

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
    "heads of unequal size": (
        {"mamba_n_heads": 5},
        "mamba_n_heads is 5, but must divide mamba_expand .* 96",
    ),
    "groups of unequal size": (
        {"mamba_n_groups": 3},
        "mamba_n_groups is 3, but must divide mamba_n_heads, 4",
    ),
    "a head size that does not fit": ({"mamba_d_head": 23}, "mamba_d_head is 23, but must be 24"),
    "one tap": ({"mamba_d_conv": 1}, "mamba_d_conv is 1, but must be an integer of at least 2"),
    "limited steps": ({"time_step_limit": [0.0, 0.1]}, "time_step_limit is .*, but nothing but"),
    "an unknown kind": (
        {"layer_types": ["mamba", "sliding_attention", "attention"]},
        "layer_types is .*, but must name linear_attention or full_attention once per hidden layer",
    ),
    "no attention": ({"layer_types": ["mamba"] * 3}, "must name full_attention at least once"),
    "no attention said": ({"layer_types": None}, "must name full_attention at least once"),
    "learned positions": ({"position_embedding_type": "learned"}, "must be rope or nope"),
    "another activation": ({"hidden_act": "gelu"}, 'hidden_act is "gelu", but nothing else is supported'),
    "another norm": ({"normalization_function": "layernorm"}, "normalization_function is"),
    "more experts than there are": ({"num_experts_per_tok": 6}, "num_experts_per_tok is 6, but must be at"),
    "unknown": ({"mamba_rms_norm": False}, "mamba_rms_norm is false, but this field is not known"),
}
OF_BAMBA = {
    "layers that it lacks": ({"attn_layer_indices": [3]}, "attn_layer_indices is .*, but must name layers"),
    "no layer": (
        {"attn_layer_indices": []},
        "attn_layer_indices is .*, but must name layers .* at least one",
    ),
    "another part of a head": ({"attn_rotary_emb": 8}, "attn_rotary_emb is 8, but nothing else"),
}

OF_FALCON_H1 = {
    "too few factors": ({"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers is .*, but must have 5 factors"),
    "a factor of 0": ({"ssm_out_multiplier": 0.0}, "ssm_out_multiplier is 0.0, but must be greater than 0"),
    "a width that does not fit": ({"mamba_d_ssm": 97}, "mamba_n_heads is 4, but must divide mamba_d_ssm, 97"),
    "a norm before the gate": (
        {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
        "mamba_norm_before_gate is true, but must be false",
    ),
    "biases": ({"projectors_bias": True}, "projectors_bias is true, but nothing else is supported"),
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
        read(checkpoint, tmp_path, "granite_hybrid", changes)


@pytest.mark.parametrize("case", OF_BAMBA)
def test_refused_of_bamba(case: str, checkpoint: Checkpoints, tmp_path: Path):
    changes, message = OF_BAMBA[case]
    with pytest.raises(StartupError, match=message):
        read(checkpoint, tmp_path, "bamba", changes)


@pytest.mark.parametrize("case", OF_FALCON_H1)
def test_refused_of_falcon_h1(case: str, checkpoint: Checkpoints, tmp_path: Path):
    changes, message = OF_FALCON_H1[case]
    with pytest.raises(StartupError, match=message):
        read(checkpoint, tmp_path, "falcon_h1", changes)


def test_falcon_h1_as_published(checkpoint: Checkpoints, tmp_path: Path):
    """The fields of Falcon-H1-0.5B's file that change nothing, and the spelling of its rotation."""
    published = {
        **{
            "attn_layer_indices": None,
            "mamba_use_mlp": True,
            "mlp_expansion_factor": 8,
            "mamba_chunk_size": 128,
        },
        **{"num_logits_to_keep": 1, "rope_parameters": None, "rope_theta": 1e11, "rope_scaling": None},
    }
    config = read(checkpoint, tmp_path, "falcon_h1", published)
    assert len(config.mambas) == 3 and config.mambas_attend is not None and config.has_states
    assert {rope and rope.theta for rope in config.ropes} == {1e11}


def test_as_published_files_spell_it(checkpoint: Checkpoints, tmp_path: Path):
    """The first names of kinds of layers, and fields that say what is the default."""
    kinds = ["mamba", "attention", "mamba"]
    published = {
        **{"layer_types": kinds, "position_embedding_type": "nope", "mamba_d_head": "auto"},
        **{"rope_theta": 10000, "rope_scaling": None, "init_method": "mup", "time_step_limit": None},
        **{"normalization_function": "rmsnorm", "mamba_chunk_size": 128, "rope_parameters": None},
    }
    config = read(checkpoint, tmp_path, "granite_hybrid", published)
    assert [mamba is not None for mamba in config.mambas] == [True, False, True] and config.has_states
    assert config.ropes == (None, None, None)
    assert config == read(checkpoint, tmp_path, "granite_hybrid", {})


def test_attention_alone(checkpoint: Checkpoints, tmp_path: Path):
    """Sizes of layers that the model lacks count for nothing."""
    changes = {"layer_types": ["attention"] * 3, "mamba_n_heads": 7, "time_step_limit": [1, 2]}
    config = read(checkpoint, tmp_path, "granite_hybrid", changes)
    assert not config.mambas and not config.has_states
