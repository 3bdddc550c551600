"""The law of detokenizing: joined pieces equal the tokenizer's own decode, however they are cut."""

import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from frontend.text.detokenizer import (
    MAX_UNDECIDED,
    ByteLevelDetokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
)
from frontend.text.tokenizer import Tokenizer
from tests.frontend.fakes import byte_level_tokenizer, encode, piece_tokenizer

TEXTS = ("hi ", "é", "你好", "🙂", "  ", "the", "\n\n", "👨‍👩‍👧", "ñ", "שלום", "<|end|>", "<think>", "a")
BYTES = (0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x99, 0x82, 0xFF, 0xC3, 0xA9, 0x41)


def llama(*, strip: int) -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", strip, 0)] * (strip > 0))


KINDS = {
    "byte-level": (byte_level_tokenizer, ByteLevelDetokenizer),
    "llama": (lambda: piece_tokenizer(llama(strip=1)), PieceDetokenizer),
    "strips-two": (lambda: piece_tokenizer(llama(strip=2)), PieceDetokenizer),
    "gemma": (lambda: piece_tokenizer(llama(strip=0)), PieceDetokenizer),
    "metaspace": (lambda: piece_tokenizer(decoders.Metaspace()), PieceDetokenizer),
    "metaspace-never": (
        lambda: piece_tokenizer(decoders.Metaspace(prepend_scheme="never")),
        PieceDetokenizer,
    ),
    "metaspace-bytes": (
        lambda: piece_tokenizer(
            decoders.Sequence(
                [decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback(), decoders.Fuse()]
            )
        ),
        PieceDetokenizer,
    ),
    "word-piece": (lambda: piece_tokenizer(decoders.WordPiece()), WindowDetokenizer),
    "suffixes": (lambda: piece_tokenizer(decoders.BPEDecoder("b")), WindowDetokenizer),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    make, expected = KINDS[request.param]
    raw = make()
    tokenizer = Tokenizer(raw)
    assert type(tokenizer.detokenizer(skip_special_tokens=True)) is expected
    return raw, tokenizer


def random_sequence(rng: random.Random, raw: tokenizers.Tokenizer) -> list[int]:
    """Token ids: random ones (some without a token), runs of bytes that are mostly invalid, or text."""
    size = raw.get_vocab_size()
    how = rng.random()
    if how < 0.3:
        return [rng.randrange(size + 3) for _ in range(rng.randrange(1, 24))]
    if how < 0.6:
        ids = [raw.token_to_id(f"<0x{byte:02X}>") for byte in BYTES]
        ids = [token for token in ids if token is not None] or encode(bytes(BYTES))
        return rng.choices([*ids, *ids, 1, 2, rng.randrange(size)], k=rng.randrange(1, 24))
    return raw.encode("".join(rng.choices(TEXTS, k=rng.randrange(1, 10)))).ids


def pieces_of(detokenizer, ids: list[int], rng: random.Random) -> list[str]:
    pieces, start = [], 0
    while start < len(ids):
        end = start + rng.randrange(1, 4)
        pieces.append(detokenizer.push(ids[start:end]))
        start = end
    return [*pieces, detokenizer.flush()]


def test_joined_pieces_equal_the_decode(kind):
    """1,200 sequences per kind of tokenizer, with and without special tokens."""
    raw, tokenizer = kind
    rng = random.Random(7)
    for _ in range(1200):
        ids, skip = random_sequence(rng, raw), rng.random() < 0.5
        pieces = pieces_of(tokenizer.detokenizer(skip_special_tokens=skip), ids, rng)
        assert "".join(pieces) == raw.decode(ids, skip_special_tokens=skip)


def test_after_a_prompt_text_is_what_it_adds(kind):
    """The output's text is the decode of prompt and output less the prompt's: SentencePiece drops the
    space that a text begins with, and must not drop the one between prompt and output."""
    raw, tokenizer = kind
    rng = random.Random(11)
    checked = 0
    for _ in range(1200):
        ids, skip = random_sequence(rng, raw), rng.random() < 0.5
        border = rng.randrange(len(ids) + 1)
        before = raw.decode(ids[:border], skip_special_tokens=skip)
        whole = raw.decode(ids, skip_special_tokens=skip)
        if not whole.startswith(before) or "\ufffd" in whole:
            continue  # tokens of the prompt and of the output make a character together
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
        detokenizer.prime(ids[:border])
        assert "".join(pieces_of(detokenizer, ids[border:], rng)) == whole[len(before) :]
        checked += 1
    assert checked > 300


def test_copies_are_independent(kind):
    """The n sequences of a request start from one that has seen the prompt."""
    raw, tokenizer = kind
    rng = random.Random(5)
    for _ in range(100):
        prompt, first, second = (random_sequence(rng, raw) for _ in range(3))
        start = tokenizer.detokenizer(skip_special_tokens=False)
        echo = start.push(prompt)
        copies = start.copy(), start.copy()
        for output, copy in zip((first, second), copies, strict=True):
            text = echo + "".join(pieces_of(copy, output, rng))
            assert text == raw.decode(prompt + output, skip_special_tokens=False)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(0, 24), max_size=6))
def test_invalid_utf8_is_replaced_as_in_one_go(data, cuts):
    """Each maximal subpart becomes one U+FFFD, also where it is cut."""
    raw = _BYTE_LEVEL
    ids = encode(data)
    detokenizer = _TOKENIZER.detokenizer(skip_special_tokens=True)
    places = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    text = "".join(detokenizer.push(ids[start:end]) for start, end in zip(places, places[1:], strict=False))
    assert text + detokenizer.flush() == raw.decode(ids)


_BYTE_LEVEL = byte_level_tokenizer()
_TOKENIZER = Tokenizer(_BYTE_LEVEL)


def test_a_code_point_is_never_split():
    detokenizer = _TOKENIZER.detokenizer(skip_special_tokens=True)
    assert [detokenizer.push([token]) for token in encode("é🙂")] == ["", "é", "", "", "", "🙂"]


def test_a_run_of_bytes_is_decided_when_it_ends():
    """One bad byte makes a whole run invalid, so nothing of it may be shown before."""
    raw = piece_tokenizer(llama(strip=1))
    tokenizer = Tokenizer(raw)
    good = [raw.token_to_id(f"<0x{byte:02X}>") for byte in "你".encode()]
    bad, word = raw.token_to_id("<0xFF>"), raw.token_to_id("▁the")
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True)
    assert [detokenizer.push([token]) for token in [*good, bad, word]] == [
        "",
        "",
        "",
        "",
        "\ufffd" * 4 + " the",
    ]
    assert [detokenizer.push([token]) for token in [*good, word]] == ["", "", "", "你 the"]


def test_what_is_no_text_does_not_stall_the_window():
    """R25: invalid bytes never stall a stream, whatever the decoder."""
    detokenizer = WindowDetokenizer(lambda ids: "\ufffd" * len(ids), lambda token: False)
    pieces = [detokenizer.push([7]) for _ in range(MAX_UNDECIDED)]
    assert "".join(pieces) == "\ufffd" * MAX_UNDECIDED and pieces[-1]
