"""A GGUF file's tokens under grammars: the masks are those of the tokenizer.json that it was made of."""

import json
from array import array
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from frontend.grammar.notation import json_grammar
from pagewire.gguf.header import Header
from pagewire.gguf.vocabulary import GGUFVocabulary
from tests.checkpoints import make_checkpoint
from tests.gguf_files import write_gguf
from worker.grammar.tokenizer import load_compiler

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
PIECES = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "\u2581", "{", "a", "\u2581a", "ab", "b"]
TYPES = [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1]


def masks(matcher: LLMatcher, tokens: list[int]) -> list[bytes]:
    """The mask before each of some tokens, and the one after all of them."""
    found = []
    for token in tokens:
        found.append(matcher.compute_bitmask())
        assert matcher.consume_token(token)
    return [*found, matcher.compute_bitmask()]


def test_masks_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path / "llama", num_hidden_layers=1)
    path = write_gguf(folder, tmp_path / "tiny.gguf")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    text = (folder / "tokenizer.json").read_text()
    tokens = LLTokenizer(text, n_vocab=size, eos_token=[2]).tokenize_str('{"city":"Köln","days":3}')
    found = []
    for where in (folder, path):
        compiler = load_compiler(where, size, [2])
        assert compiler is not None
        found.append(masks(compiler.compile(json_grammar(json.dumps(SCHEMA))).result(), tokens))
    assert found[0] == found[1]


def test_pieces_are_the_bytes_that_they_stand_for() -> None:
    """SentencePiece's mark is a space, also in what a grammar forces."""
    entries = {
        "model": "llama",
        "tokens": PIECES,
        "token_type": array("i", TYPES),
        "scores": array("f", [0.0, 0, 0, 0, 0, -3, -4, -5, -1, -2, -6]),
        "unknown_token_id": 0,
    }
    header = Header(Path("pieces.gguf"), {f"tokenizer.ggml.{name}": entry for name, entry in entries.items()})
    tokenizer = LLTokenizer(
        GGUFVocabulary(header).make().to_str(), n_vocab=len(PIECES), eos_token=[PIECES.index("</s>")]
    )
    assert tokenizer.decode_bytes([8, 4, 3, 9]) == b" a\xc3\nab"
    matcher = LLMatcher(tokenizer, 'start: "{" (" a" | "b")')
    assert matcher.consume_token(PIECES.index("{"))
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    assert {PIECES[token] for token in range(len(PIECES)) if allowed >> token & 1} == {
        "\u2581",
        "\u2581a",
        "b",
    }


def test_the_log_says_why_a_file_has_no_grammars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with caplog.at_level("INFO"):
        assert load_compiler(tmp_path / "broken.gguf", 8, [0]) is None
    assert "no structured output" in caplog.text
