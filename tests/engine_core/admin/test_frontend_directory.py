"""Frontends are listed, and commands and answers are passed on between them."""

from collections.abc import Iterator

import pytest

from engine_core.admin.frontend_directory import MAX_FRONTENDS
from pagewire.internal.v1.engine_pb2 import (
    EngineMessage,
    FrontendCommand,
    FrontendReply,
    Hello,
    ListFrontends,
    Utility,
    UtilityResult,
)
from pagewire.v1.admin_pb2 import DrainRequest, FrontendStatus
from tests.engine_core.house import EPOCH, House

A, B = b"\xaa", b"\xbb"


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.inbox.close()


def meet(house: House, *frontends: bytes) -> None:
    for frontend in frontends:
        house.put(Hello(known_epoch=EPOCH, name=f"frontend-{frontend.hex()}", address="host:1"), frontend)
    house.step()


def listed(house: House) -> list[tuple[str, str, str]]:
    house.put(Utility(call_id=9, list_frontends=ListFrontends()), A)
    ((_, message),) = house.step()
    found = message.utility_result.frontends.frontends
    return [(each.instance_id, each.name, each.address) for each in found]


def command(house: House, frontend: bytes) -> list[tuple[bytes, EngineMessage]]:
    """A commands a frontend to drain."""
    order = FrontendCommand(frontend=frontend, drain=DrainRequest(), asker=b"forged", call_id=99)
    house.put(Utility(call_id=4, command_frontend=order), A)
    return house.step()


def test_frontends_are_listed_until_they_are_silent(house: House) -> None:
    meet(house, A, B)
    assert listed(house) == [("aa", "frontend-aa", "host:1"), ("bb", "frontend-bb", "host:1")]
    house.now = 2.5
    meet(house, A)
    house.now = 4.0
    assert [name for name, _, _ in listed(house)] == ["aa"]


def test_a_frontend_that_cannot_be_reached_is_not_listed(house: House) -> None:
    meet(house, A, B)
    house.lose(B)
    house.step()
    assert [name for name, _, _ in listed(house)] == ["aa"]


def test_a_command_and_its_answer_are_passed_on(house: House) -> None:
    meet(house, A, B)
    ((to, message),) = command(house, B)
    passed = message.frontend_command
    assert to == B and passed.HasField("drain") and (passed.asker, passed.call_id) == (A, 4)
    status = FrontendStatus(instance_id="bb", in_flight_requests=7)
    house.put(FrontendReply(asker=A, call_id=4, status=status), B)
    ((to, message),) = house.step()
    assert to == A and message.utility_result == UtilityResult(call_id=4, frontend_status=status)


def test_a_command_to_no_frontend_is_answered_with_nothing(house: House) -> None:
    meet(house, A)
    ((to, message),) = command(house, B)
    assert to == A and message.utility_result == UtilityResult(call_id=4)


def test_an_answer_in_the_name_of_another_frontend_is_dropped(house: House) -> None:
    meet(house, A, B)
    house.put(FrontendReply(asker=A, call_id=4, status=FrontendStatus(instance_id="cc")), B)
    assert house.step() == []


def test_the_list_is_bounded(house: House) -> None:
    """Where it is full, a frontend is listed as soon as one has died."""
    for number in range(MAX_FRONTENDS):
        house.put(Hello(known_epoch=EPOCH), b"%d" % number)
    meet(house, A)
    house.sent.clear()
    assert len(listed(house)) == MAX_FRONTENDS and ("aa", "frontend-aa", "host:1") not in listed(house)
    house.now = 4.0
    meet(house, A)
    assert listed(house) == [("aa", "frontend-aa", "host:1")]
