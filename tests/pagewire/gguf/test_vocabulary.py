"""Tokenizers made of GGUF metadata: the tokens that the tokenizers they were written from make."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from frontend.text.tokenizer import Tokenizer
from pagewire.errors import StartupError
from pagewire.gguf.header import Header
from pagewire.gguf.vocabulary import GGUFVocabulary, TokenType
from tests.checkpoints import SPECIAL_TOKENS, make_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\n and\ttabs ",
    "größer 東京 🙂 é",
    "3.14159 1000000",
    "I'LL don't",
    "<|end|> in a text<|begin|>",
]


def vocabulary(**entries: Any) -> GGUFVocabulary:
    """Of a file with these entries under tokenizer.ggml."""
    return GGUFVocabulary(
        Header(Path("a.gguf"), {f"tokenizer.ggml.{name}": value for name, value in entries.items()})
    )


def byte_level() -> dict[str, Any]:
    """The entries of a tokenizer of 400 tokens."""
    model = made()["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": array("i", [3 if token in SPECIAL_TOKENS else 1 for token in tokens]),
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
    }


def made() -> dict[str, Any]:
    return json.loads(make_tokenizer(400).to_str())


def test_byte_level_vocabularies():
    ours, theirs = Tokenizer(vocabulary(**byte_level()).make()), Tokenizer(make_tokenizer(400))
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).token_ids
        assert ours.encode(text, add_special_tokens=False).token_ids == expected
        assert ours.decode([expected], skip_special_tokens=False) == [text]
    assert set(ours.special_tokens) == {0, 1, 2}
    names = vocabulary(**byte_level()).special_tokens()
    assert names == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}


@pytest.mark.parametrize(
    ("flags", "ends"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([1], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
        ({"pre": "llama-bpe"}, ([1], [])),
    ],
    ids=str,
)
def test_tokens_that_begin_and_end_a_text(flags: dict[str, Any], ends: tuple[list[int], list[int]]):
    tokenizer = Tokenizer(vocabulary(**{**byte_level(), **flags}).make())
    whole = list(tokenizer.encode("Hello", add_special_tokens=True).token_ids)
    plain = list(tokenizer.encode("Hello", add_special_tokens=False).token_ids)
    assert whole == [*ends[0], *plain, *ends[1]]


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_an_end_that_is_to_be_added_has_an_id(name: str):
    entries = {**byte_level(), f"add_{name}_token": True}
    del entries[f"{name}_token_id"]
    with pytest.raises(StartupError, match=f"add_{name}_token: is true, but there is no {name}_token_id"):
        vocabulary(**entries).make()


@pytest.mark.parametrize("kind", [TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED])
def test_two_tokens_of_one_text_are_refused(kind: TokenType):
    """The second one had no text in answers, or made a control token of the word. Empty ones do not count."""
    entries = byte_level()
    entries["tokens"] += ["", ""]
    entries["token_type"] = array("i", [*entries["token_type"], TokenType.NORMAL, TokenType.NORMAL])
    assert vocabulary(**entries).make()
    entries["tokens"].append(entries["tokens"][350])
    entries["token_type"] = array("i", [*entries["token_type"], kind])
    with pytest.raises(StartupError, match="tokens: 350 and 402 have the same text"):
        vocabulary(**entries)


def sentence_piece() -> tuple["tokenizers.Tokenizer", dict[str, Any]]:
    """A tokenizer of SentencePiece's kind, and the entries that a file has for it."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    words = [word for path in sorted(Path(__file__).parent.glob("*.py")) for word in path.read_text().split()]
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [2, 3, 3, *[6] * 256] + [1] * (len(tokens) - 259)
    scores = [-1000.0 if kind != 1 else float(-place) for place, kind in enumerate(types)]
    entries = {
        "model": "llama",
        "tokens": tokens,
        "scores": array("f", scores),
        "token_type": array("i", types),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return tokenizer, entries


def test_scores_become_merges():
    """The merges of a trained tokenizer follow from the order of its pieces."""
    theirs, entries = sentence_piece()
    ours = Tokenizer(vocabulary(**entries).make())
    for text in TEXTS[2:-1]:
        expected = theirs.encode(text, add_special_tokens=False).tokens
        tokens = ours.encode(text, add_special_tokens=False).token_ids
        assert [entries["tokens"][token] for token in tokens] == expected
        assert ours.decode([tokens], skip_special_tokens=False) == [text]
        pieces = ours.detokenizer(skip_special_tokens=False)
        assert "".join(pieces.push([token]) for token in tokens) + pieces.flush() == text
    assert ours.encode("x", add_special_tokens=True).token_ids[0] == 1


def test_user_defined_tokens_are_found_before_merging():
    _, entries = sentence_piece()
    entries["tokens"][-1], entries["token_type"][-1] = "<table>", TokenType.USER_DEFINED
    tokenizer = Tokenizer(vocabulary(**entries).make())
    token = len(entries["tokens"]) - 1
    assert token in tokenizer.encode("a<table>b", add_special_tokens=False).token_ids
    assert token not in tokenizer.special_tokens


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "bert"}, "'bert' is not known: known are gpt2 and llama"),
        ({"pre": "unheard-of"}, "'unheard-of' is not known"),
        ({"tokens": None}, "tokens: must be an array of strings"),
        ({"merges": ["a"]}, "'a' does not join two tokens"),
        ({"merges": ["a nothing-like-it"]}, "does not join two tokens"),
        ({"token_type": array("i", [1])}, "token_type: must have a number for each of 400"),
        ({"bos_token_id": 400}, "bos_token_id: 400 is not one of 400 tokens"),
        ({"bos_token_id": "x"}, "bos_token_id: 'x'"),
        ({"model": "llama"}, "scores: must have a number"),
    ],
    ids=str,
)
def test_entries_that_are_wrong_are_named(change: dict[str, Any], why: str):
    with pytest.raises(StartupError) as caught:
        vocabulary(**{**byte_level(), **change}).make()
    assert why in str(caught.value)
