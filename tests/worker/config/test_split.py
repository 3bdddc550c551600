"""Sizes that tensor-parallel ranks divide, of each kind of decoder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from worker.config.decoder import DecoderConfig
from worker.config.split import divided_sizes
from worker.families.registry import read_model_config

INNER = "inputs of the last matrix of a feed-forward part"
LLAMA = {(4, "attention heads", False), (2, "KV heads", True), (80, INNER, False)}


@pytest.mark.parametrize(
    ("family", "overrides", "expected"),
    [
        ("llama", {}, LLAMA),
        ("mixtral", {}, LLAMA - {(80, INNER, False)}),
        ("qwen2_moe", {}, LLAMA - {(80, INNER, False)} | {(56, INNER, False)}),
        ("youtu", {}, LLAMA - {(2, "KV heads", True)}),
        (
            "gemma4",
            {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
            LLAMA | {(1, "KV heads", True)},
        ),
        (
            "qwen3_5",
            {},
            LLAMA | {(4, "value heads of a delta net", False), (2, "key heads of a delta net", True)},
        ),
        (
            "falcon_h1",
            {},
            LLAMA | {(4, "heads of a Mamba-2 layer", False), (2, "groups of a Mamba-2 layer", True)},
        ),
    ],
)
def test_sizes(
    family: str,
    overrides: dict[str, object],
    expected: set[tuple[int, str, bool]],
    checkpoint: Callable[..., Path],
):
    """Those of experts are whole, and latents have no KV heads."""
    config = read_model_config(checkpoint(family, **overrides))
    assert isinstance(config, DecoderConfig)
    assert set(divided_sizes(config)) == expected
