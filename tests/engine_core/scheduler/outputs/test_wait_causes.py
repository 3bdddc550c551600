"""What requests wait for, as the scheduler decides it."""

from collections import deque

import pytest

from engine_core.admin.requests import list_requests
from engine_core.scheduler.outputs.wait_causes import Cause
from pagewire.internal.v1.engine_pb2 import Abort, ListRequests
from pagewire.ipc.columns import unpack_u32, unpack_u64
from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.house import House

STEP_S = 0.25


def run(house: House, steps: int = 1000) -> None:
    """Steps until nothing is in flight; a step takes STEP_S."""
    while steps and (house.scheduler.requests or house.inbox):
        house.step()
        house.now += STEP_S
        steps -= 1


def waits(house: House, handle: int) -> dict[str, float]:
    """Seconds in the queue of a request, and of these by cause."""
    for _, message in house.sent:
        outputs = message.step_outputs
        handles = unpack_u64(outputs.started_handles)
        if handle in handles:
            place, count = handles.index(handle), len(Cause)
            found = unpack_u32(outputs.started_waits_us)[count * place : count * (place + 1)] or [0] * count
            causes = {cause.name: us / 1e6 for cause, us in zip(Cause, found, strict=True) if us}
            return {"all": unpack_u32(outputs.started_queue_us)[place] / 1e6} | causes
    raise AssertionError("it has not begun")


def pauses(house: House) -> dict[int, float]:
    """Seconds of all pauses, by handle."""
    found: dict[int, float] = {}
    for _, message in house.sent:
        outputs = message.step_outputs
        for handle, us in zip(unpack_u64(outputs.paused_handles), unpack_u32(outputs.paused_us), strict=True):
            found[handle] = found.get(handle, 0.0) + us / 1e6
    return found


def test_rows() -> None:
    house = House(rows=1)
    for handle in (1, 2):
        house.put(add_request(handle, max_tokens=8, ignore_eos=True))
    run(house)
    assert waits(house, 1) == {"all": 0.0}
    waited = waits(house, 2)
    assert waited == {"all": pytest.approx(8 * STEP_S), "ROWS": pytest.approx(8 * STEP_S)}
    house.inbox.close()


def test_rows_for_siblings() -> None:
    house = House(rows=4, prefix_cache=False)
    house.put(add_request(1, max_tokens=8, ignore_eos=True))
    house.put(add_request(2, n=4, max_tokens=2, ignore_eos=True))
    run(house)
    assert waits(house, 2)["ROWS"] == pytest.approx(8 * STEP_S)
    house.inbox.close()


def test_blocks() -> None:
    house = House(blocks=12, prefix_cache=False)
    house.put(add_request(1, 32, max_tokens=6, ignore_eos=True))
    house.put(add_request(2, 28, max_tokens=2, ignore_eos=True))
    run(house)
    waited = waits(house, 2)
    assert waited["BLOCKS"] == waited["all"] > 0
    house.inbox.close()


def test_budget() -> None:
    """The prompt before it takes three steps."""
    house = House(budget=16)
    house.put(add_request(1, 40, max_tokens=2, ignore_eos=True))
    house.put(add_request(2, 5, max_tokens=2, ignore_eos=True))
    run(house)
    waited = waits(house, 2)
    assert waited["BUDGET"] == waited["all"] == pytest.approx(2 * STEP_S)
    house.inbox.close()


def test_the_encoder() -> None:
    """Each step encodes one image; a listed request says what it waits for."""
    house = House(encoder_budget=6)
    for handle in (1, 2, 3):
        add_item(message := add_request(handle, 9, max_tokens=2), range(6), bytes([handle]))
        house.put(message)
    run(house, 1)
    listed = pb.ListRequestsResponse()
    deque(list_requests(house.scheduler.states, ListRequests(limit=9), listed, house.now), maxlen=0)
    assert [each.waits_for for each in listed.requests] == [0, *2 * [pb.WAIT_CAUSE_ENCODER]]
    run(house)
    assert [waits(house, handle) for handle in (2, 3)] == [
        {"all": pytest.approx(steps * STEP_S), "ENCODER": pytest.approx(steps * STEP_S)} for steps in (1, 2)
    ]
    house.inbox.close()


def test_what_is_left_is_the_queue() -> None:
    """The step that ran when it arrived: nothing was short."""
    house = House()
    house.put(add_request(1, max_tokens=8, ignore_eos=True))
    run(house, 2)
    house.now -= STEP_S
    house.put(add_request(2, max_tokens=2))
    house.now += STEP_S
    run(house)
    assert waits(house, 2) == {"all": pytest.approx(STEP_S)}
    house.inbox.close()


def test_pauses_of_preempted_requests() -> None:
    """Both fit, but cannot grow."""
    house = House(blocks=8, prefix_cache=False)
    for handle in (1, 2):
        house.put(add_request(handle, 11, max_tokens=12, ignore_eos=True))
    run(house)
    (handle,) = pauses(house)
    assert pauses(house)[handle] >= STEP_S and house.scheduler.num_preemptions
    assert not house.scheduler.states.wait_causes._paused
    house.inbox.close()


def test_a_paused_request_that_is_aborted_leaves_nothing() -> None:
    house = House(blocks=8, prefix_cache=False)
    for handle in (1, 2):
        house.put(add_request(handle, 11, max_tokens=12, ignore_eos=True))
    while not house.scheduler.num_preemptions:
        run(house, 1)
    (victim,) = house.scheduler.states.wait_causes._paused
    house.put(Abort(handle=victim.handle))
    run(house)
    causes = house.scheduler.states.wait_causes
    assert not causes._paused and not causes._at_arrival
    house.inbox.close()
