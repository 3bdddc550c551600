"""Whatever ends a request, wherever it is: its blocks are free within two steps, and nothing is computed.

The table is that of states and events; each cell is a story of its own. What computes at that moment is
finished, since a step cannot be stopped; it is not planned again.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest

from engine_core.io.inbox import FrontendGone
from engine_core.request import FinishReason
from pagewire.internal.v1.engine_pb2 import Abort, AbortByIds, AddRequest, Utility
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

VICTIM = 1
SOON_S = 5.0
MOST_STEPS = 2

State = Callable[[House, AddRequest], None]


def filler(handle: int, **options: object) -> AddRequest:
    """One that takes part, of another frontend."""
    values: dict[str, object] = {"max_tokens": 50, "ignore_eos": True, "salt": str(handle)}
    return add_request(handle, **(values | options))  # type: ignore[arg-type]


def arriving(house: House, message: AddRequest) -> None:
    house.put(message)


def queued(house: House, message: AddRequest) -> None:
    for handle in range(100, 104):
        house.put(filler(handle), b"other")
    house.step()
    house.put(message)
    house.step(2)
    assert not request(house).num_running


def in_its_prompt(house: House, message: AddRequest) -> None:
    message.prompt_token_ids = add_request(VICTIM, 40).prompt_token_ids
    house.put(message)
    house.step()
    assert 0 < request(house).sequences[0].num_computed_tokens < 40


def decoding(house: House, message: AddRequest) -> None:
    house.put(message)
    house.step(6)
    assert request(house).sequences[0].num_computed_tokens > 6


def preempted(house: House, message: AddRequest) -> None:
    """A request of a better class needs its blocks."""
    message.priority = 5
    house.put(message)
    house.step(3)
    for handle in range(100, 103):
        house.put(filler(handle, prompt=20, max_tokens=40), b"other")
    for _ in range(60):
        house.step()
        if request(house).num_preemptions:
            break
    assert not request(house).num_running and request(house).num_preemptions


STATES: dict[str, tuple[State, dict[str, object], dict[str, int]]] = {
    "arriving": (arriving, {}, {}),
    "queued": (queued, {}, {}),
    "queued, several sequences": (queued, {"n": 3}, {}),
    "in its prompt": (in_its_prompt, {}, {}),
    "in its prompt, several sequences": (in_its_prompt, {"n": 3}, {}),
    "decoding": (decoding, {}, {}),
    "decoding, several sequences": (decoding, {"n": 3}, {}),
    "searching": (decoding, {"beams": beam_search(2), "n": 2}, {}),
    "preempted": (preempted, {}, {"blocks": 24}),
    "preempted and swapped out": (preempted, {}, {"blocks": 24, "host_blocks": 24}),
}


def abort(house: House) -> None:
    house.put(Abort(handle=VICTIM))


def abort_by_id(house: House) -> None:
    house.put(Utility(call_id=1, abort_by_ids=AbortByIds(request_ids=["victim"])), b"other")


def frontend_dies(house: House) -> None:
    house.inbox.put(FrontendGone(b"a"))


def time_passes(house: House) -> None:
    house.now += 2 * SOON_S


EVENTS: dict[str, tuple[Callable[[House], None], str, FinishReason | None]] = {
    "Abort": (abort, "", None),
    "Abort by its id": (abort_by_id, "", FinishReason.ABORTED),
    "its frontend dies": (frontend_dies, "", None),
    "deadline": (time_passes, "deadline", None),
    "time limit": (time_passes, "time_limit", FinishReason.TIME_LIMIT),
}
"""What happens, the field that it needs, and how the frontend hears that the sequences have ended."""


def request(house: House):
    found = house.scheduler.requests.by_handle(b"a", VICTIM)
    assert found is not None
    return found


def rows_of_the_victim(house: House, since: int) -> int:
    """Rows that plans since then begin for it."""
    plans = house.worker.plans[since:]
    return sum(new.parameters.sampling.seed == VICTIM for plan in plans for new in plan.new_rows)


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "ahead"])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_blocks_are_free_within_two_steps(state: str, event: str, ahead: bool) -> None:
    reach, wanted, size = STATES[state]
    happen, limit, reason = EVENTS[event]
    house = House(**({"rows": 4, "budget": 16, "blocks": 64} | size), ahead=ahead)
    message = add_request(
        VICTIM, 6, max_tokens=40, min_tokens=39, ignore_eos=True, request_id="victim", **wanted
    )
    if limit == "deadline":
        message.deadline.FromTimedelta(timedelta(seconds=SOON_S))
    elif limit:
        message.stopping.time_limit.FromTimedelta(timedelta(seconds=SOON_S))
    house.worker.stopped = True
    reach(house, message)
    since = len(house.worker.plans)
    happen(house)
    steps = 0
    while (steps == 0 or house.scheduler.requests.by_id("victim")) and steps < MOST_STEPS:
        house.step()
        steps += 1
    assert house.scheduler.requests.by_id("victim") is None
    assert not rows_of_the_victim(house, since) or state == "arriving"
    held = {block for sequence in house.scheduler.running for block in sequence.blocks}
    pool = house.scheduler.pool
    assert pool.num_blocks - pool.num_free == len(held), "only running sequences hold blocks"
    told = {*house.outputs_of(b"a").ends.values()}
    assert told == ({reason} if reason is not None else set())
    assert [failure.reason for failure in house.failures()] == ["FRONTEND_LOST"] * (
        event == "its frontend dies"
    )
    for handle in range(100, 104):
        house.put(Abort(handle=handle), b"other")
    house.run()
    assert pool.num_free == pool.num_blocks and not house.scheduler.in_flight
    house.inbox.close()


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "ahead"])
def test_what_has_ended_or_never_was_cannot_be_ended(ahead: bool) -> None:
    """An abort may race with the end, come twice, or name no request: other requests are not affected."""
    house = House(ahead=ahead)
    house.put(add_request(VICTIM, max_tokens=2, ignore_eos=True, request_id="victim"))
    house.put(filler(100, max_tokens=8))
    while house.scheduler.requests.by_id("victim"):
        house.step()
    for event in (abort, abort, abort_by_id):
        event(house)
    house.put(Abort(handle=999))
    house.run()
    assert house.outputs_of(b"a").ends[100, 0] is FinishReason.MAX_TOKENS
    assert not house.failures()
    house.inbox.close()


def test_ten_thousand_cancels_leave_nothing() -> None:
    """In all states at once: cancelled while they arrive, wait, compute and decode."""
    house = House(rows=8, budget=32)
    house.worker.stopped = True
    for number in range(10_000):
        message = filler(number + 1, prompt=3 + number % 9, max_tokens=30, n=1 + number % 3)
        message.deadline.FromTimedelta(timedelta(hours=1))
        message.tenant = f"t{number % 50}"
        house.put(message)
        if number >= 20:
            house.put(Abort(handle=number - 19 + number % 3))
        if number % 10 == 0:
            house.core.step()
        house.sent.clear()
    for number in range(10_000):
        house.put(Abort(handle=number + 1))
    while house.scheduler.requests or house.inbox or house.scheduler.in_flight:
        house.step()
    scheduler = house.scheduler
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert len(scheduler.rows.free) == scheduler.num_rows and not scheduler.running
    assert not len(scheduler.waiting) and not scheduler.waiting.num_tokens
    assert len(scheduler.states.timeouts) <= 64
    assert not scheduler.requests._by_frontend and not scheduler.requests._of_tenants
    house.inbox.close()
