"""What the tokenizer says, against the library that it wraps."""

import random

import pytest
from tokenizers import AddedToken, decoders, normalizers

from frontend.text.tokenizer import Tokenizer
from tests.checkpoints import make_wordpiece
from tests.frontend.fakes import (
    BEGIN,
    END,
    byte_level_tokenizer,
    encode,
    piece_tokenizer,
)
from tests.frontend.text.test_detokenizer import KINDS, random_sequence


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer())


@pytest.mark.parametrize("text", ["", "hi the", "é🙂\n\n", "<|end|>x"])
@pytest.mark.parametrize("special", [True, False])
def test_encoding(tokenizer, text, special):
    raw = byte_level_tokenizer()
    expected = raw.encode(text, add_special_tokens=special)
    for offsets in (False, True):
        encoding = tokenizer.encode(text, add_special_tokens=special, offsets=offsets)
        assert list(encoding.token_ids) == expected.ids
        assert list(encoding.added) == expected.special_tokens_mask
        assert list(encoding.offsets) == (expected.offsets if offsets else [])


def test_pairs(tokenizer):
    """What the library makes of two texts; the second one begins where its types do, if there are some."""
    pairs = Tokenizer(make_wordpiece(100)).encode_pair("a b", "c")
    assert list(pairs.token_ids) == [2, 5, 6, 3, 7, 3] and pairs.second_text == 4
    assert Tokenizer(make_wordpiece(100)).encode_pair("", "").second_text == 2
    plain = tokenizer.encode_pair("hi", "the")
    assert list(plain.token_ids) == byte_level_tokenizer().encode("hi", "the").ids


def test_padding_and_truncation_of_the_file_are_off():
    """Some checkpoints have the truncation of their training in tokenizer.json."""
    raw = byte_level_tokenizer()
    raw.enable_truncation(2)
    raw.enable_padding(length=20)
    assert len(Tokenizer(raw).encode("abcd", add_special_tokens=False).token_ids) == 4


def test_decoding_many(tokenizer):
    raw = byte_level_tokenizer()
    rng = random.Random(3)
    sequences = [random_sequence(rng, raw) for _ in range(50)]
    for skip in (True, False):
        expected = [raw.decode(ids, skip_special_tokens=skip) for ids in sequences]
        assert tokenizer.decode(sequences, skip_special_tokens=skip) == expected


def test_bytes_of_tokens(tokenizer):
    assert [tokenizer.token_bytes(token) for token in encode("aé")] == [b"a", b"\xc3", b"\xa9"]
    assert tokenizer.token_bytes(END) == b"<|end|>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(2**32) == b""
    text = "hi the é🙂"
    ids = tokenizer.encode(text, add_special_tokens=False).token_ids
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_bytes_of_pieces():
    raw = piece_tokenizer(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]))
    tokenizer = Tokenizer(raw)
    tokens = {piece: raw.token_to_id(piece) for piece in ("▁Hello", "<0xE4>", "</s>", "你")}
    found = {piece: tokenizer.token_bytes(token) for piece, token in tokens.items()}
    assert found == {"▁Hello": b" Hello", "<0xE4>": b"\xe4", "</s>": b"</s>", "你": "你".encode()}
    window = Tokenizer(KINDS["word-piece"][0]())
    assert window.token_bytes(tokens["▁Hello"]) == "▁Hello".encode()


def test_the_longest_token_bounds_what_a_text_can_shrink_to(tokenizer):
    assert tokenizer.longest_token == len("<|assistant|>")
    swallowing = byte_level_tokenizer()
    swallowing.add_special_tokens([AddedToken("<|x|>", special=True, lstrip=True)])
    normalizing = byte_level_tokenizer()
    normalizing.normalizer = normalizers.Strip()
    for raw in (swallowing, normalizing, KINDS["llama"][0]()):
        assert Tokenizer(raw).longest_token is None


def test_ids_of_texts(tokenizer):
    assert tokenizer.token_id("<|begin|>") == BEGIN
    assert tokenizer.token_id("no such token") is None
