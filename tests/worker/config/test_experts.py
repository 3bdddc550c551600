"""Configurations of mixtures of experts: what is refused, by the field's name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.errors import StartupError
from worker.config.decoder import DecoderConfig
from worker.families.registry import read_model_config

CASES = {
    "more than there are": ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7, but must be"),
    "no groups of that size": ("glm4_moe", {"n_group": 3}, "n_group is 3, but must divide 8 experts"),
    "groups too small": ("glm4_moe", {"n_group": 8}, "n_group is 8, but must divide 8 experts"),
    "more groups than there are": ("glm4_moe", {"topk_group": 5}, "topk_group is 5, but must be at most"),
    "too few groups": ("glm4_moe", {"topk_group": 1}, "topk_group is 1, but 1 groups have less than 3"),
    "clipped": ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0, but nothing else is supported"),
    "another score": ("glm4_moe", {"scoring_func": "softmax"}, 'scoring_func is "softmax", but'),
    "unknown": ("mixtral", {"expert_dropout": 0.1}, "expert_dropout is 0.1, but this field is not known"),
    "without angles": ("gpt_oss", {"rope_parameters": None}, "rope_scaling is null, but must say"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, checkpoint: Callable[..., Path], tmp_path: Path):
    family, changes, message = CASES[case]
    fields = json.loads((checkpoint(family) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises(StartupError, match=message.replace(".", r"\.")):
        read_model_config(tmp_path)


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "qwen3_next"])
def test_no_experts(family: str, checkpoint: Callable[..., Path], tmp_path: Path):
    """Of 0 experts no layer has any, and what is said of them does not count."""
    fields = json.loads((checkpoint(family) / "config.json").read_text())
    count = "num_experts" if "num_experts" in fields else "num_local_experts"
    (tmp_path / "config.json").write_text(json.dumps(fields | {count: 0}))
    config = read_model_config(tmp_path)
    assert isinstance(config, DecoderConfig)
    assert not any(config.experts)


def test_dense_layers_among_others(checkpoint: Callable[..., Path], tmp_path: Path):
    """Those that the file names, and those that a step leaves out."""
    fields = json.loads((checkpoint("qwen3_moe") / "config.json").read_text())
    changes = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    config = read_model_config(tmp_path)
    assert isinstance(config, DecoderConfig)
    assert [experts is not None for experts in config.experts] == [False, True, False, False, False, True]
