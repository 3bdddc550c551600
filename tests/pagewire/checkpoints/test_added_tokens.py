"""Tokens that the files beside tokenizer.json name, read as transformers reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from frontend.model.checkpoint_text import read_checkpoint
from pagewire.checkpoints.added_tokens import with_missing_tokens
from pagewire.errors import StartupError
from tests.checkpoints import make_tokenizer
from worker.grammar.tokenizer import load_compiler

TEXT = "a<|end|> b <tool> c<tool>d  <|end|>"
NAMES = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


def tool(number: int = 320, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens_decoder`."""
    return {str(number): {"content": "<tool>", **FLAGS, **flags}}


def without_end(tokenizer: dict[str, Any]) -> None:
    """Leaves a token in the vocabulary alone."""
    tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["content"] != "<|end|>"]


def end_is_text(tokenizer: dict[str, Any]) -> None:
    (end,) = (each for each in tokenizer["added_tokens"] if each["content"] == "<|end|>")
    end["special"] = False


def with_tool(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"].append({"id": 320, "content": "<tool>", **FLAGS})


def as_it_is(tokenizer: dict[str, Any]) -> None:
    """Changes nothing."""


CASES = {
    "eos_token is in the vocabulary alone": (without_end, {}),
    "an additional special token is in the vocabulary alone": (
        without_end,
        {"eos_token": None, "additional_special_tokens": ["<|end|>"]},
    ),
    "extra_special_tokens by name": (
        without_end,
        {"eos_token": None, "extra_special_tokens": {"turn_token": "<|end|>"}},
    ),
    "eos_token is not called special": (end_is_text, {}),
    "added_tokens_decoder has one more": (as_it_is, {"added_tokens_decoder": tool(special=True)}),
    "added_tokens_decoder has one more, as text": (as_it_is, {"added_tokens_decoder": tool()}),
    "added_tokens_decoder has other flags": (
        with_tool,
        {"added_tokens_decoder": tool(lstrip=True, special=True)},
    ),
}


@pytest.fixture
def write(tmp_path: Path):
    """Writes the files of a tokenizer."""

    def write(edit: Any, config: dict[str, Any]) -> Path:
        content = json.loads(make_tokenizer(320).to_str())
        edit(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        named = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **config}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
        return tmp_path

    return write


@pytest.mark.parametrize("case", CASES)
def test_the_tokens_are_those_of_transformers(write, case: str) -> None:
    folder = write(*CASES[case])
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    expected = reference(TEXT)["input_ids"]
    tokenizer = read_checkpoint(folder).tokenizer
    assert list(tokenizer.encode(TEXT, add_special_tokens=True).token_ids) == expected
    for skips in (True, False):
        text = reference.decode(expected, skip_special_tokens=skips)
        assert tokenizer.decode([expected], skip_special_tokens=skips) == [text]


@pytest.mark.parametrize("case", CASES)
def test_grammars_know_the_same_tokens(write, case: str) -> None:
    """The frontend names special tokens in grammars that the worker compiles."""
    folder = write(*CASES[case])
    content = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    described = tokenizers.Tokenizer.from_str(json.dumps(with_missing_tokens(content, config, {})))
    added = described.get_added_tokens_decoder()
    assert {token: str(each) for token, each in added.items()} == {
        token: str(each) for token, each in read_checkpoint(folder).tokenizer.added_tokens.items()
    }
    compiler = load_compiler(folder, 321, [2])
    assert compiler is not None
    for name, token in read_checkpoint(folder).tokenizer.grammar_tokens.items():
        matcher = compiler.compile(json.dumps({"grammars": [{"lark_grammar": f"start: {name}"}]})).result()
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        assert [each for each in range(321) if allowed >> each & 1] == [token]


def test_ids_of_older_files(write) -> None:
    folder = write(as_it_is, {"additional_special_tokens": ["<tool>"]})
    (folder / "added_tokens.json").write_text('{"<tool>": 320}')
    tokenizer = read_checkpoint(folder).tokenizer
    assert tokenizer.token_id("<tool>") == 320 and 320 in tokenizer.special_tokens


def test_ten_thousand_of_them(write) -> None:
    """As many as some checkpoints have for sounds; each call that adds tokens takes as long as there are."""
    folder = write(as_it_is, {})
    (folder / "added_tokens.json").write_text(json.dumps({f"<{n}>": n for n in range(320, 10_320)}))
    tokenizer = read_checkpoint(folder).tokenizer
    assert [tokenizer.token_id(f"<{n}>") for n in (320, 5_000, 10_319)] == [320, 5_000, 10_319]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"added_tokens_decoder": tool(400)}, "its id 400 is not the next one"),
        ({"pad_token": "<tool>"}, "no file of the tokenizer gives it an id"),
    ],
)
def test_a_token_without_a_usable_id_stays_text(
    write, caplog: pytest.LogCaptureFixture, config: dict[str, Any], why: str
) -> None:
    tokenizer = read_checkpoint(write(as_it_is, config)).tokenizer
    assert tokenizer.token_id("<tool>") is None and why in caplog.text


def test_one_line_for_all_tokens_without_usable_ids(write, caplog: pytest.LogCaptureFixture) -> None:
    special = ["s" * 9_999, *(f"<s{number}>" for number in range(5_000))]
    folder = write(as_it_is, {"additional_special_tokens": special})
    (folder / "added_tokens.json").write_text(json.dumps({f"<{n}>": n for n in range(400, 5_400)}))
    read_checkpoint(folder)
    stays, left_out = caplog.messages
    assert f"{'s' * 100!r} stays text" in stays and stays.endswith("(and 5000 more)")
    assert "'<400>' is left out: its id 400" in left_out and left_out.endswith("(and 4999 more)")


@pytest.mark.parametrize("half", [b"\\ud800", b"x\\uDfFfy", b"\xed\xa0\x80"])
@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json", "tokenizer_config.json"])
def test_half_a_character_is_blamed_on_its_file(write, name: str, half: bytes) -> None:
    folder = write(as_it_is, {})
    (folder / name).write_bytes(b'{"pad_token": "' + half + b'", "\\ud83d\\ude00": 320}')
    with pytest.raises(StartupError, match=f"^cannot .*: {name} is not readable JSON: .*surrogates"):
        read_checkpoint(folder)


def test_characters_of_two_halves_are_read(write) -> None:
    folder = write(as_it_is, {})
    (folder / "added_tokens.json").write_bytes(b'{"\\ud83d\\ude00": 320, "\\\\ud800": 321}')
    tokenizer = read_checkpoint(folder).tokenizer
    assert tokenizer.token_id("😀") == 320 and tokenizer.token_id(r"\ud800") == 321


def test_a_single_character_stays_text(write) -> None:
    """Some checkpoints pad with "!", which answers have too."""
    tokenizer = read_checkpoint(write(as_it_is, {"pad_token": "!"})).tokenizer
    ids = tokenizer.encode("hi!", add_special_tokens=True).token_ids
    assert tokenizer.decode([ids], skip_special_tokens=True) == ["hi!"]
