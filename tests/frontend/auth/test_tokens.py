"""Tokens and the table of them."""

import contextlib
import hmac
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.auth import tokens
from frontend.auth.caller import Caller
from frontend.auth.tokens import TokenEntry, TokenTable, digest_of, new_token, token_in
from frontend.errors import Unauthenticated

TOKENS = [new_token() for _ in range(20)]
TABLE = TokenTable(TokenEntry(digest_of(token), Caller(f"tenant-{i}")) for i, token in enumerate(TOKENS))


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(Unauthenticated) as caught:
        call()
    return caught.value.reason


def test_tokens_are_long_random_and_recognizable():
    assert len(set(TOKENS)) == len(TOKENS)
    assert all(token.startswith("pw_") and len(token) == 3 + 43 for token in TOKENS)


@settings(deadline=None)
@given(st.integers(0, len(TOKENS) - 1))
def test_each_token_is_its_tenants(place):
    assert TABLE.find(TOKENS[place], 0.0).tenant == f"tenant-{place}"


@settings(deadline=None)
@given(st.one_of(st.text(st.characters(codec="utf-8")), st.sampled_from(TOKENS).map(str.swapcase)))
def test_nothing_else_lets_anybody_in(text):
    assert reason_of(lambda: TABLE.find(text, 0.0)) == "TOKEN_INVALID"
    assert reason_of(lambda: TokenTable().find(text, 0.0)) == "TOKEN_INVALID"


@settings(deadline=None)
@given(st.sampled_from(TOKENS), st.integers(0, 45), st.characters(codec="ascii"))
def test_one_wrong_character_is_enough(token, place, character):
    other = token[:place] + character + token[place + 1 :]
    if other != token:
        assert reason_of(lambda: TABLE.find(other, 0.0)) == "TOKEN_INVALID"
    assert reason_of(lambda: TABLE.find(token[:place], 0.0)) == "TOKEN_INVALID"


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(8, 31), st.integers(1, 255))
def test_the_whole_hash_counts(digest, place, change):
    """Not only the bytes by which an entry is found: a hash that shares these with one that is known, which
    no token can be made for, has no caller."""
    near = bytearray(digest)
    near[place] ^= change
    table = TokenTable([TokenEntry(digest, Caller("x"))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "digest_of", lambda token: digest)
        assert table.find("any", 0.0).tenant == "x"
        patch.setattr(tokens, "digest_of", lambda token: bytes(near))
        assert reason_of(lambda: table.find("any", 0.0)) == "TOKEN_INVALID"


@pytest.mark.parametrize("known", [True, False])
def test_hashes_are_compared_in_constant_time_known_or_not(known, monkeypatch):
    token = TOKENS[0] if known else "unknown"
    compared = []
    compare_digest = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    with contextlib.suppress(Unauthenticated):
        TABLE.find(token, 0.0)
    ((one, other),) = compared
    assert len(one) == 32 and other == digest_of(token)


def test_a_token_expires_at_its_time():
    table = TokenTable([TokenEntry(digest_of("t"), Caller("x"), expires=100.0)])
    assert table.find("t", 99.9).tenant == "x"
    assert reason_of(lambda: table.find("t", 100.0)) == "TOKEN_EXPIRED"


def test_a_token_is_in_a_table_once():
    entry = TokenEntry(digest_of("t"), Caller("x"))
    with pytest.raises(ValueError, match="twice"):
        TokenTable([entry, TokenEntry(digest_of("t"), Caller("y"))])
    assert len(TokenTable([entry])) == 1


@pytest.mark.parametrize("value", ["Bearer abc", "bearer abc", "BEARER  abc "])
def test_the_header(value):
    metadata = (("user-agent", "x"), ("authorization", value), ("grpc-trace-bin", b"\0"))
    assert token_in(metadata) == "abc"


def test_the_header_of_anthropics_clients():
    assert token_in([("x-api-key", "abc ")]) == "abc"
    assert token_in([("x-api-key", "abc"), ("authorization", "Bearer def")]) == "def"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ([], "TOKEN_MISSING"),
        ([("x-api-key", b"abc")], "TOKEN_MISSING"),
        ([("x-authorization", "Bearer abc")], "TOKEN_MISSING"),
        ([("authorization", "")], "TOKEN_INVALID"),
        ([("authorization", "abc")], "TOKEN_INVALID"),
        ([("authorization", "Basic abc")], "TOKEN_INVALID"),
        ([("authorization", b"Bearer abc")], "TOKEN_INVALID"),
    ],
)
def test_what_is_no_header(metadata, reason):
    assert reason_of(lambda: token_in(metadata)) == reason


@pytest.mark.parametrize(
    "values", [("Bearer abc", "Bearer abc"), ("Bearer abc", "Bearer def"), ("", b"x", "y")]
)
@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
@pytest.mark.parametrize("beside", [[], [("authorization", "Bearer abc")], [("x-api-key", "abc")]])
def test_several_headers(values, name, beside):
    """Which of them counts is not guessed, whatever the other header says."""
    metadata = [*(each for each in beside if each[0] != name), *((name, value) for value in values)]
    with pytest.raises(Unauthenticated, match=f"several {name} headers") as refused:
        token_in(metadata)
    assert refused.value.reason == "TOKEN_INVALID"
