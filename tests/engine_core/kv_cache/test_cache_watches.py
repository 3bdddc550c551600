"""Watches of the prefix cache, through the step loop."""

from collections.abc import Iterator

import pytest

from engine_core import frontend_messages
from engine_core.io.inbox import FrontendGone
from pagewire.internal.v1.engine_pb2 import CacheChanges, Hello, ResetCache, Utility, WatchCache
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House
from tests.engine_core.kv_cache.cache_mirror import CacheMirror

PROMPT = list(range(20, 40))
"""Five blocks, of which the fifth is full once a token follows."""


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.inbox.close()


def told(house: House, frontend: bytes, watch: int) -> list[CacheChanges]:
    """What a watch was sent so far."""
    changes = [message.cache_changes for name, message in house.sent if name == frontend]
    return [each for each in changes if each.watch == watch]


def known(messages: list[CacheChanges]) -> set[bytes]:
    """Hashes that are cached, according to these messages."""
    mirror = CacheMirror()
    for message in messages:
        mirror.apply(message.changes)
    return {*mirror.blocks}


def test_a_watch_gets_a_snapshot_and_then_each_steps_changes(house: House) -> None:
    house.put(WatchCache(watch=1))
    house.put(add_request(1, PROMPT, max_tokens=3))
    house.run()
    snapshot, *changes = told(house, b"a", 1)
    assert snapshot.num_parts == 1 and not snapshot.changes and changes
    assert all(not each.num_parts for each in changes)
    assert len(known(changes)) == house.scheduler.pool.num_cached == 5
    house.put(WatchCache(watch=2), b"b")
    house.put(Utility(call_id=5, reset_cache=ResetCache()))
    house.step()
    late, cleared = told(house, b"b", 2)
    assert known([late]) == known(changes) and late.num_unknown_blocks == 0
    assert known([late, cleared]) == set() == known(told(house, b"a", 1))


def test_blocks_from_before_are_told_once_a_request_finds_them(house: House) -> None:
    house.put(add_request(1, PROMPT, max_tokens=3))
    house.run()
    house.put(WatchCache(watch=1))
    house.put(add_request(2, PROMPT, max_tokens=3))
    house.run()
    snapshot, *changes = told(house, b"a", 1)
    assert snapshot.num_unknown_blocks == 5 and not snapshot.changes
    assert len(known(changes)) == 5


def test_nothing_is_kept_or_sent_without_a_watch(house: House) -> None:
    house.put(add_request(1, PROMPT, max_tokens=3))
    house.run()
    assert house.scheduler.prefix_cache.log is None
    assert not any(message.HasField("cache_changes") for _, message in house.sent)


@pytest.mark.parametrize("end", [WatchCache(watch=1, ends=True), Hello(known_epoch=0), FrontendGone(b"a")])
def test_a_watch_ends_when_it_is_ended_or_its_frontend_is_gone(house: House, end: object) -> None:
    house.put(WatchCache(watch=1))
    house.put(WatchCache(watch=1), b"b")
    house.step()
    if isinstance(end, FrontendGone):
        house.inbox.put(end)
    else:
        house.put(end)
    house.put(add_request(1, PROMPT, max_tokens=3), b"b")
    house.run()
    assert len(told(house, b"a", 1)) == 1 and len(told(house, b"b", 1)) > 1


def test_a_large_snapshot_comes_in_parts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_messages, "PART_BLOCKS", 2)
    house.put(WatchCache(watch=1))
    house.put(add_request(1, PROMPT, max_tokens=3))
    house.run()
    house.put(WatchCache(watch=2))
    house.step()
    parts = told(house, b"a", 2)
    assert [part.num_parts for part in parts] == [3, 3, 3]
    assert known(parts) == known(told(house, b"a", 1))
