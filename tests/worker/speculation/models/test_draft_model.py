"""Which models can draft for which."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from tests.checkpoints import VOCAB_SIZE
from tests.worker.fakes import initialize
from worker.families.registry import read_model_config
from worker.load import load
from worker.platforms.cpu import CpuPlatform
from worker.speculation.models.draft_model import check_draft_model, read_draft_model

Checkpoints = Callable[..., Path]


def check(target: Path, draft: Path, max_model_len: int = 256) -> Any:
    command = initialize(target, speculation=f"draft:{draft}")
    return read_draft_model(command, read_model_config(target), max_model_len)


def test_another_shape_of_the_same_vocabulary_can(checkpoint: Checkpoints) -> None:
    found = check(checkpoint("llama"), checkpoint("qwen3"))
    assert found.command.model_path == str(checkpoint("qwen3"))


@pytest.mark.parametrize(
    ("fields", "context", "why"),
    [
        ({"vocab_size": VOCAB_SIZE + 1}, 256, r"vocabulary has 321 tokens, the target's 320"),
        ({"max_position_embeddings": 64}, 65, "goes to 64 tokens, and the context is 65"),
    ],
)
def test_one_that_does_not_fit_is_refused(
    checkpoint: Checkpoints, tmp_path: Path, fields: dict[str, int], context: int, why: str
) -> None:
    target, draft = checkpoint("llama"), tmp_path / "small"
    draft.mkdir()
    config = json.loads((target / "config.json").read_text()) | fields
    (draft / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match=why) as refused:
        check(target, draft, context)
    assert refused.value.what == f"cannot draft for {target.name} with small" and refused.value.todo


def test_other_tokens_are_refused(checkpoint: Checkpoints, tmp_path: Path) -> None:
    target, draft = checkpoint("llama"), tmp_path / "small"
    draft.mkdir()
    (draft / "config.json").write_bytes((target / "config.json").read_bytes())
    check(target, draft)  # without a tokenizer.json it is a matter of trust
    tokenizer = json.loads((target / "tokenizer.json").read_text())
    tokens = tokenizer["model"]["vocab"]
    first, second = list(tokens)[:2]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StartupError, match="tokens of their vocabularies are different"):
        check(target, draft)


@pytest.mark.cpu_kernels
def test_memory_for_both_caches_or_a_line_that_names_both_models(checkpoint: Checkpoints) -> None:
    target, draft = checkpoint("llama", head_dim=32), checkpoint("qwen3", head_dim=32)
    command = initialize(
        target,
        dtype="bfloat16",
        block_size=16,
        num_blocks=1 << 32 - 1,
        speculation=f"draft:{draft}",
    )
    with pytest.raises(StartupError, match="of each block are the draft model's") as refused:
        load(command, CpuPlatform(WorkerConfig(threads=1)))
    assert target.name in refused.value.what and draft.name in refused.value.what


def config(has_states: bool = False) -> Any:
    return SimpleNamespace(vocab_size=10, max_position=64, has_states=has_states, architecture="SomeModel")


def folder(path: Path, tokenizer: object) -> Path:
    """A checkpoint with this tokenizer; None: without one."""
    path.mkdir()
    if tokenizer is not None:
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


OF_TWO_TOKENS = {"model": {"vocab": {"a": 0, "b": 1}}}


@pytest.mark.parametrize(
    "tokenizer",
    [{"model": {"vocab": {"b": 1, "a": 0}}, "added_tokens": []}, None, {}, {"model": None}, {"model": {}}],
    ids=["another order", "none", "empty", "no model", "no vocabulary"],
)
def test_tokens_that_are_the_same_or_not_said(tokenizer: object, tmp_path: Path) -> None:
    """On either side: then their number has to do."""
    one, other = folder(tmp_path / "one", OF_TWO_TOKENS), folder(tmp_path / "other", tokenizer)
    check_draft_model(config(), one, config(), other, 64)
    check_draft_model(config(), other, config(), one, 64)
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    check_draft_model(config(), one, config(), tmp_path / "small.gguf", 64)


def test_tokens_that_one_model_lacks(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", OF_TWO_TOKENS)
    other = folder(tmp_path / "other", {"model": {"vocab": {"a": 0}}})
    with pytest.raises(StartupError, match="cannot draft for one with other: .* are different"):
        check_draft_model(config(), one, config(), other, 64)


def test_states_from_which_no_draft_can_be_taken_back(tmp_path: Path) -> None:
    """Those of the draft model: the target may have some."""
    one, other = folder(tmp_path / "one", None), folder(tmp_path / "other", None)
    check_draft_model(config(has_states=True), one, config(), other, 64)
    with pytest.raises(StartupError, match="SomeModel keeps a state per row"):
        check_draft_model(config(), one, config(has_states=True), other, 64)
