"""The data of media, which requests in flight share."""

import pytest

from engine_core.errors import Code
from pagewire.internal.v1.engine_pb2 import AddRequest
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.house import House
from tests.engine_core.world import World

SIZE = 96
"""Bytes of an item."""


def image_request(handle: int, *contents: bytes, again: bool = False) -> AddRequest:
    message = add_request(handle, 20, max_tokens=2, again=again)
    for number, content in enumerate(contents):
        add_item(message, range(4 * number, 4 * number + 4), content)
    return message


def test_equal_items_are_held_once_and_until_the_last_request_ends() -> None:
    world = World()
    media = world.scheduler.states.media
    first, second = (world.take(image_request(handle, b"a", b"b", b"a")) for handle in (1, 2))
    assert (len(media), media.num_bytes) == (2, 2 * SIZE)
    items = first.parameters.media + second.parameters.media
    assert len({id(item.data) for item in items}) == 2, "the bytes themselves"
    world.scheduler.abort(first)
    world.scheduler.check_invariants()
    assert media.num_bytes == 2 * SIZE
    world.messages.pop(1)
    world.finish()
    assert (len(media), media.num_bytes) == (0, 0)
    assert not any(item.data for item in items), "a request that is kept for longer has no bytes"


def test_a_request_for_which_there_is_no_room_is_refused_until_there_is() -> None:
    house = House(media_memory=2 * SIZE)
    house.put(image_request(1, b"a", b"b"))
    house.put(image_request(2, b"a", b"b"))
    house.put(image_request(3, b"c"))
    house.put(image_request(4, b"d", again=True))
    house.step()
    [failure] = house.failures()
    assert (failure.handle, failure.code, failure.reason) == (3, Code.RESOURCE_EXHAUSTED, "MEDIA_MEMORY_FULL")
    assert failure.HasField("retry_delay")
    house.run()
    house.put(image_request(5, b"c"))
    house.run()
    assert {handle for handle, _ in house.outputs_of(b"a").ends} == {1, 2, 4, 5}
    house.inbox.close()


def test_a_request_that_never_has_room_is_refused_for_good() -> None:
    house = House(media_memory=2 * SIZE)
    house.put(image_request(1, b"a", b"b", b"c"))
    house.put(image_request(2, b"a", b"a", b"a"))
    house.run()
    [failure] = house.failures()
    assert (failure.handle, failure.code, failure.reason) == (1, Code.INVALID_ARGUMENT, "MEDIA_TOO_LARGE")
    assert failure.field == "prompt.media" and not failure.HasField("retry_delay")
    house.inbox.close()


@pytest.mark.parametrize("in_one_request", [True, False])
def test_an_item_has_one_number_of_vectors(in_one_request: bool) -> None:
    house = House()
    first, other = add_request(1, 20), add_request(2, 20)
    add_item(first, range(4))
    add_item(first if in_one_request else other, range(4, 7))
    house.put(first)
    house.put(other)
    house.step()
    [failure] = house.failures()
    assert (failure.handle, failure.field) == (1 if in_one_request else 2, "prompt.media")
    house.run()
    house.inbox.close()
