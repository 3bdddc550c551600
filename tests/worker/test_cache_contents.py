"""What a worker knows of its cache for the next engine core: changes in order, and what is handed over."""

import pytest

from pagewire.internal.v1.worker_pb2 import KeptCache, KeptChanges
from pagewire.ipc.columns import pack_u32, unpack_u32
from worker.cache_contents import CONTENT_BYTES, CacheContents


def contents_of(*letters: str) -> bytes:
    return b"".join(letter.encode() * CONTENT_BYTES for letter in letters)


def kept(**blocks: int) -> KeptChanges:
    """The contents that are named by letters are in these blocks."""
    return KeptChanges(kept_blocks=pack_u32([*blocks.values()]), kept_contents=contents_of(*blocks))


def kept_checkpoints(**places: int) -> KeptChanges:
    return KeptChanges(
        kept_checkpoints=pack_u32([*places.values()]), kept_checkpoint_contents=contents_of(*places)
    )


def blocks_of(cache: KeptCache) -> tuple[list[int], bytes]:
    return list(unpack_u32(cache.blocks)), cache.contents


def after(*changes: KeptChanges) -> KeptCache:
    known = CacheContents(b"secret")
    for each in changes:
        known.apply(each)
    return known.hand_over()


def test_nothing_is_known_at_first():
    assert after() == KeptCache(secret=b"secret")


def test_blocks_come_in_the_order_in_which_they_were_cached():
    assert blocks_of(after(kept(a=5, b=2), kept(c=9))) == ([5, 2, 9], contents_of("a", "b", "c"))


def test_a_block_that_is_written_again_comes_last():
    """Its first content is forgotten before: in an earlier plan, or in the same one."""
    forgets = KeptChanges(forgotten_blocks=pack_u32([5]))
    both = KeptChanges()
    both.CopyFrom(kept(c=5))
    both.MergeFrom(forgets)
    for changes in ((kept(a=5, b=2), forgets, kept(c=5)), (kept(a=5, b=2), both)):
        assert blocks_of(after(*changes)) == ([2, 5], contents_of("b", "c"))


def test_what_is_not_known_can_be_forgotten():
    """A core names what plans write, whatever they hold."""
    assert blocks_of(after(KeptChanges(forgotten_blocks=pack_u32([1, 7])), kept(a=7))) == (
        [7],
        contents_of("a"),
    )


def test_blocks_and_checkpoints_are_told_apart():
    """By their numbers they are not; each kind is forgotten by itself."""
    cache = after(kept(a=1), kept_checkpoints(b=1), KeptChanges(forgotten_blocks=pack_u32([1])))
    assert blocks_of(cache) == ([], b"")
    assert (unpack_u32(cache.checkpoints), cache.checkpoint_contents) == ([1], contents_of("b"))
    cache = after(kept(a=1), kept_checkpoints(b=1), KeptChanges(forgotten_checkpoints=pack_u32([1])))
    assert blocks_of(cache) == ([1], contents_of("a")) and not cache.checkpoints


def test_everything_is_forgotten_before_anything_is_kept():
    fresh = kept(c=3)
    fresh.forgets_all = True
    cache = after(kept(a=1, b=3), kept_checkpoints(d=4), fresh)
    assert blocks_of(cache) == ([3], contents_of("c")) and unpack_u32(cache.checkpoints) == [4]
    cache = after(kept(a=1), kept_checkpoints(d=4), KeptChanges(forgets_all_checkpoints=True))
    assert blocks_of(cache) == ([1], contents_of("a")) and not cache.checkpoints


def test_what_was_handed_over_is_forgotten():
    """The next core says what it goes on with."""
    known = CacheContents(b"secret")
    known.apply(kept(a=1))
    known.apply(kept_checkpoints(b=2))
    assert known.hand_over().blocks and known.hand_over() == KeptCache(secret=b"secret")


@pytest.mark.parametrize("cut", [0, CONTENT_BYTES - 1, CONTENT_BYTES + 1, 2 * CONTENT_BYTES])
@pytest.mark.parametrize("kind", ["kept", "kept_checkpoint"])
def test_columns_that_do_not_fit(kind: str, cut: int):
    """One place, and contents that are none, too short, too long, or those of two."""
    changes = KeptChanges(**{f"{kind}_contents": b"x" * cut})
    changes.MergeFrom(
        KeptChanges(kept_blocks=pack_u32([1]))
        if kind == "kept"
        else KeptChanges(kept_checkpoints=pack_u32([1]))
    )
    with pytest.raises(ValueError, match=f"contents of 1 places have {cut} bytes"):
        CacheContents(b"").apply(changes)
