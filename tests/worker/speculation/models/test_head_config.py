"""Which heads can draft for which models, and what their files say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.eagle_heads import write_head
from tests.worker.fakes import initialize
from worker.families.registry import read_model_config
from worker.load import load
from worker.platforms.cpu import CpuPlatform
from worker.speculation.models.head_config import HeadConfig, read_head_config

Checkpoints = Callable[..., Path]
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def target(checkpoint: Checkpoints) -> Path:
    return checkpoint("llama", head_dim=32, hidden_size=64, max_position_embeddings=256)


def read(target: Path, folder: Path, **fields: Any) -> HeadConfig:
    return read_head_config(write_head(folder, target, **fields), read_model_config(target))


def test_which_layers_are_read(target: Path, tmp_path: Path) -> None:
    """vLLM counts layers, SGLang numbers them."""
    assert read(target, tmp_path).after == (1, 2, 3)
    nested = {"eagle_config": {IDS: [0, 2], "use_aux_hidden_state": True}, IDS: None}
    assert read(target, tmp_path, **nested).after == (1, 3)
    config = read(target, tmp_path, tokens=range(7, 60), norm_before_residual=True)
    assert config.has_token_map and config.draft_vocab_size == 53 and config.norms_residual


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM is no head"),
        ({"vocab_size": 400}, "vocabulary has 400 tokens, the target's 320"),
        ({"hidden_size": 128}, "target_hidden_size is 128, the target's hidden_size 64"),
        ({"target_hidden_size": 32}, "target_hidden_size is 32"),
        ({IDS: [1, 2, 4]}, r"\[1, 2, 4\], but must name different layers of the target, which has 3"),
        ({IDS: None}, "different layers"),
        ({"num_hidden_layers": 2}, "a head has one layer"),
        ({"draft_vocab_size": 321}, "draft_vocab_size is 321"),
        ({"sparse": 2}, "sparse"),
    ],
)
def test_what_does_not_fit_is_named(target: Path, tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(StartupError, match=why):
        read(target, tmp_path, **fields)


def refused(target: Path, head: Path, **changes: Any) -> StartupError:
    command = initialize(target, speculation=f"heads:{head}", block_size=16, **changes)
    with pytest.raises(StartupError) as found:
        load(command, CpuPlatform(WorkerConfig(threads=1)))
    assert found.value.what == f"cannot draft for {target.name} with the head {head.name}"
    return found.value


@pytest.mark.cpu_kernels
def test_both_models_are_named(target: Path, tmp_path: Path) -> None:
    """In weights that do not fit, token maps that are no maps, and caches that are too large."""
    head = write_head(tmp_path / "head", target, tokens=range(10, 50))
    assert "each block are the head's" in refused(target, head, num_blocks=1 << 31).why
    tensors = load_file(head / "model.safetensors")
    for wrong in (tensors["d2t"] * 0 - torch.arange(40), tensors["d2t"] + 290, tensors["d2t"][:7]):
        save_file(tensors | {"d2t": wrong.contiguous()}, head / "model.safetensors")
        assert "d2t" in refused(target, head).why
    save_file({name: each for name, each in tensors.items() if name != "d2t"}, head / "model.safetensors")
    assert "lacks tensor d2t" in refused(target, head).why
    save_file({**tensors, "fc.weight": torch.ones(64, 128)}, head / "model.safetensors")
    assert "fc.weight" in refused(target, head).why
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"vocab_size": 321}))
    assert "the target's 320" in refused(target, head).why
