"""The log of the prefix cache: a mirror made of what it tells holds what the cache holds, and its tokens."""

import random

from engine_core.kv_cache.cache_changes import CachedBlock, CacheLog, encode
from pagewire.internal.v1.engine_pb2 import CacheChange
from pagewire.ipc.columns import unpack_u32
from tests.engine_core.fakes import run
from tests.engine_core.kv_cache.cache_mirror import CacheMirror
from tests.engine_core.world import World


def block(parent: bytes = b"", token: int = 7, salt: str = "") -> CachedBlock:
    return CachedBlock(parent, token.to_bytes(4, "little"), "t", salt)


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_blocks_that_follow_one_another_are_one_message():
    log = CacheLog()
    log.stored(name(1), block())
    log.stored(name(2), block(name(1), 8))
    log.stored(name(3), block(name(1), 9))
    for each in (1, 3, 4):
        log.removed(name(each))
    log.stored(name(5), block(salt="s"))
    stored, other, removed, salted = encode(log.take())
    assert stored.stored.hashes == name(1) + name(2) and list(unpack_u32(stored.stored.token_ids)) == [7, 8]
    assert (other.stored.parent_hash, other.stored.hashes) == (name(1), name(3))
    assert removed.removed_hashes == name(1) + name(3), "4 was unknown"
    assert (salted.stored.tenant, salted.stored.cache_salt) == ("t", "s")
    assert log.take() == [] and len(log) == 2


def test_a_snapshot_has_parents_first():
    log = CacheLog()
    log.stored(name(1), block())
    log.stored(name(2), block(name(1)))
    log.removed(name(1))
    log.stored(name(1), block())
    assert [content for content, _ in log.snapshot()] == [name(1), name(2)]


def test_clearing_makes_what_was_to_be_told_void():
    log = CacheLog()
    log.stored(name(1), block())
    log.cleared()
    (change,) = encode(log.take())
    assert change == CacheChange(cleared={}) and not len(log)


def test_a_mirror_equals_the_cache_whatever_happens():
    """Prompts share prefixes, the pool is small, the cache is reset; the log begins late."""
    for seed in range(4):
        draw = random.Random(seed)
        world = World(blocks=24, rows=4)
        mirror, log = CacheMirror(), None
        for handle in range(1, 40):
            common = [100 + i for i in range(draw.choice([0, 4, 8, 16]))]
            world.add(handle, common + [draw.randrange(40, 60) for _ in range(draw.randrange(1, 9))])
            run(world.scheduler, world.worker, world.ledger, steps=draw.randrange(3))
            if handle == 10:
                log = world.scheduler.prefix_cache.logged()
            if draw.random() < 0.05:
                world.scheduler.reset_cache()
            if log is not None:
                mirror.apply(encode(log.take()))
                mirror.check(world.scheduler.pool, len(log))
        world.finish()
        assert log is not None
        mirror.apply(encode(log.take()))
        mirror.check(world.scheduler.pool, len(log))
        fresh = CacheMirror()
        fresh.apply(encode(log.snapshot()))
        assert fresh.blocks == mirror.blocks and mirror.num_stored > 20
