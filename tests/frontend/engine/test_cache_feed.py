"""Feeds of the cores' prefix caches, with cores that are told what to send."""

import asyncio

import pytest

from frontend.engine import cache_feed
from frontend.engine.cache_feed import CacheFeeds
from pagewire.internal.v1 import engine_pb2


class FakeCore:
    """Remembers which watches it has."""

    def __init__(self) -> None:
        self.serves = True
        self.watches: list[int] = []

    def watch_cache(self, watch: int, *, ends: bool = False) -> None:
        if not ends:
            self.watches.append(watch)
        elif watch in self.watches:
            self.watches.remove(watch)


def stored(*numbers: int) -> engine_pb2.CacheChange:
    hashes = b"".join(number.to_bytes(16, "little") for number in numbers)
    return engine_pb2.CacheChange(
        stored=engine_pb2.CachedBlocks(hashes=hashes, token_ids=bytes(8 * len(numbers)))
    )


def message(core: FakeCore, *changes: engine_pb2.CacheChange, parts: int = 0) -> engine_pb2.CacheChanges:
    """To the core's latest watch."""
    return engine_pb2.CacheChanges(watch=core.watches[-1], num_parts=parts, changes=changes)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(cache_feed, "INTERVAL_S", 0.0)


async def begin(feed, *cores):
    """Starts take(), and returns its task when the cores are watched."""
    task = asyncio.create_task(feed.take())
    while not all(core.watches for core in cores):
        await asyncio.sleep(0)
    return task


async def test_snapshots_of_all_cores_are_one_and_come_first():
    first, second = FakeCore(), FakeCore()
    feeds = CacheFeeds(lambda: [first, second])
    with feeds.open() as feed:
        task = await begin(feed, first, second)
        feeds.put(first, message(first, stored(1), parts=2))
        feeds.put(first, message(first, stored(2, 3), parts=2))
        feeds.put(first, message(first, stored(4)))
        await asyncio.sleep(0)
        assert not task.done(), "a snapshot is told whole"
        feeds.put(second, message(second, stored(5), parts=1))
        batches = [await task] + [await feed.take() for _ in range(3)]
        assert [batch.part for batch in batches] == [0, 1, 2, 0]
        assert [(batch.num_parts, batch.num_blocks) for batch in batches] == [(3, 4)] * 3 + [(0, 0)]
        assert batches[3].changes[0] == stored(4)
    assert first.watches == second.watches == [], "nothing is watched for a feed that is closed"


async def test_a_reader_that_is_too_slow_gets_a_snapshot_again(monkeypatch):
    core = FakeCore()
    feeds = CacheFeeds(lambda: [core])
    monkeypatch.setattr(cache_feed, "MAX_WAITING_BYTES", 200)
    with feeds.open() as feed:
        task = await begin(feed, core)
        old = core.watches[-1]
        feeds.put(core, message(core, parts=1))
        await task
        for number in range(100):
            feeds.put(core, engine_pb2.CacheChanges(watch=old, changes=[stored(number)]))
        assert core.watches == [], "nothing more is asked for until it reads"
        task = await begin(feed, core)
        assert core.watches != [old]
        feeds.put(core, engine_pb2.CacheChanges(watch=old, changes=[stored(8)]))
        feeds.put(core, message(core, stored(9), parts=1))
        batch = await task
        assert batch.num_parts == 1 and batch.changes[0] == stored(9)


async def test_a_core_that_comes_or_goes_makes_a_new_snapshot():
    cores = [FakeCore(), FakeCore()]
    cores[1].serves = False
    feeds = CacheFeeds(lambda: cores)
    with feeds.open() as feed:
        task = await begin(feed, cores[0])
        feeds.put(cores[0], message(cores[0], stored(1), parts=1))
        assert (await task).num_blocks == 1
        cores[0].serves = False
        feeds.restart()
        assert (await feed.take()).num_parts == 1, "without cores there is nothing, which is told"


async def test_of_several_cores_one_that_is_cleared_makes_a_new_snapshot():
    cores = [FakeCore(), FakeCore()]
    cleared = engine_pb2.CacheChange(cleared=engine_pb2.CacheCleared())
    feeds = CacheFeeds(lambda: cores)
    with feeds.open() as feed:
        task = await begin(feed, *cores)
        for core in cores:
            feeds.put(core, message(core, stored(1), parts=1))
        await task
        feeds.put(cores[0], message(cores[0], cleared))
        task = await begin(feed, *cores)
        for core, number in zip(cores, (2, 3), strict=True):
            feeds.put(core, message(core, stored(number), parts=1))
        assert [batch.changes[0] for batch in (await task, await feed.take())] == [stored(2), stored(3)]
    cores.pop()
    with feeds.open() as feed:
        task = await begin(feed, cores[0])
        feeds.put(cores[0], message(cores[0], parts=1))
        await task
        feeds.put(cores[0], message(cores[0], cleared))
        assert (await feed.take()).changes[0] == cleared, "of one core it is told as it is"


async def test_a_watch_of_no_feed_is_ended():
    core = FakeCore()
    core.watches.append(7)
    CacheFeeds(lambda: [core]).put(core, engine_pb2.CacheChanges(watch=7))
    assert core.watches == []
