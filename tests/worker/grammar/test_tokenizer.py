"""Where the model's tokens come from."""

import json
from pathlib import Path

import pytest

from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.internal.v1 import worker_pb2
from worker.grammar.tokenizer import GrammarsToCome, load_compiler


def test_the_demo_model_has_grammars() -> None:
    folder = checkpoint_folder("demo")
    config = json.loads((folder / "config.json").read_text())
    command = worker_pb2.Initialize(model_path=str(folder))
    rows = GrammarsToCome(command, config["vocab_size"], [config["eos_token_id"]]).rows(lambda *_: None)
    assert rows.engine.startswith("llguidance 1.")


def test_none_where_they_are_switched_off() -> None:
    command = worker_pb2.Initialize(model_path=str(checkpoint_folder("demo")), no_structured_output=True)
    assert GrammarsToCome(command, 1024, [2]).rows(lambda *_: None).engine == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "tokenizer.json"),
        ("{", "not supported"),
        ("tokenizer.json", "is not readable JSON"),
        (' [{"model": {}}]', "is not a JSON object"),
        ('{"model": ' + "[" * 100_000, "not supported"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "not supported"),
    ],
)
def test_the_log_says_why_there_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with caplog.at_level("INFO"):
        assert load_compiler(tmp_path, 8, [0]) is None
    assert why in caplog.text


def test_none_without_an_end_token() -> None:
    assert load_compiler(checkpoint_folder("demo"), 1024, []) is None
