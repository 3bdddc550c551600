"""Which core was sent which prefix."""

from frontend.engine.prefixes import MAX_CORES, SentPrefixes, names_of
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.ipc.columns import pack_u32

SIZE = 4
"""Tokens of a block."""


def request(num_tokens: int, first: int = 0, **fields: object) -> AddRequest:
    return AddRequest(prompt_token_ids=pack_u32(range(first, first + num_tokens)), **fields)


def names(num_tokens: int, first: int = 0, **fields: object) -> list[bytes]:
    return names_of(request(num_tokens, first, **fields), SIZE)


def test_a_prompt_has_few_names() -> None:
    """Of 1, 2, 3, 4, 6, 8, 12, 16 and 24 of its 25 blocks."""
    assert len(names(25 * SIZE)) == 9
    assert names(25 * SIZE)[:4] == names(5 * SIZE)
    assert names(SIZE - 1) == []
    assert len(names(100_000)) < 40


def test_what_may_not_be_shared_has_other_names() -> None:
    """Or none."""
    apart = [{}, {"tenant": "a"}, {"cache_salt": "a"}, {"adapter": {"digest": b"a"}}]
    assert len({names(8, **fields)[0] for fields in apart}) == len(apart)
    assert names(8, cache_bypass=True) == names(8, embeddings={}) == []


def test_the_longest_prefix_decides() -> None:
    sent = SentPrefixes()
    sent.note(names(8), "a")
    sent.note(names(16), "b")
    assert sent.find(names(20), "c", {"a", "b"}) == "b"
    assert sent.find(names(8), "c", {"a", "b"}) == "b", "the last one that got it"
    assert sent.find(names(20), "c", {"a"}) == "a", "the other may not send"
    assert sent.find(names(20), "b", {"a", "b"}) == "", "none has more than it has itself"
    assert sent.find(names(20), "a", {"a", "b"}) == "b"
    assert sent.find(names(20, first=1), "c", {"a", "b"}) == ""


def test_it_is_bounded() -> None:
    sent = SentPrefixes(most=10)
    for first in range(0, 1000, 100):
        sent.note(names(16, first), "a")
    assert len(sent) == 10
    assert sent.find(names(16, 900), "b", {"a"}) == "a" and not sent.find(names(16), "b", {"a"})
    for core in "bcdefg":
        sent.note(names(16, 900), core)
    assert not sent.find(names(16, 900), "x", {"a"}) and MAX_CORES < 6


def test_prompts_with_images_have_no_names() -> None:
    """Their tokens do not say which images they stand for."""
    assert names(4 * SIZE)
    assert not names(4 * SIZE, media=[{"digest": bytes(32)}])
