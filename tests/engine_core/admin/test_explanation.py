"""One request, explained."""

from collections.abc import Iterator

import pytest

from pagewire.internal.v1.engine_pb2 import ExplainRequest
from pagewire.v1 import inspection_pb2 as pb
from tests.engine_core.admin.asking import ask
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

LONG = list(range(20, 32))


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(rows=getattr(request, "param", 8))
    yield made
    made.inbox.close()


def explained(house: House, handle: int) -> pb.ExplainRequestResponse:
    return ask(house, explain_request=ExplainRequest(request_id=f"request-{handle}")).explanation


def test_its_blocks_and_those_that_share_them(house: House) -> None:
    house.put(add_request(1, LONG, max_tokens=30, ignore_eos=True))
    house.step()
    house.put(add_request(2, LONG, n=2, max_tokens=30, ignore_eos=True))
    house.put(add_request(3, LONG[:5] + [9] * 7, max_tokens=30, ignore_eos=True))
    house.put(add_request(4, max_tokens=30, ignore_eos=True))
    house.step(2)
    found = explained(house, 1)
    assert found.request.request_id == "request-1" and not found.HasField("position")
    assert found.num_sharers == 2
    assert [(each.request_id, each.blocks) for each in found.sharers] == [("request-2", 2), ("request-3", 1)]
    (sequence,) = found.sequences
    assert sequence.phase == pb.REQUEST_PHASE_DECODE and sequence.blocks == found.request.blocks
    assert sequence.tokens == 12 + sequence.output_tokens
    assert len(explained(house, 2).sequences) == 2
    assert not explained(house, 4).num_sharers


@pytest.mark.parametrize("house", [1], indirect=True)
def test_the_place_in_the_queue(house: House) -> None:
    house.put(add_request(1, max_tokens=30, ignore_eos=True))
    house.step()
    for handle in (2, 3, 4):
        house.put(add_request(handle, prompt=10 * handle, tenant="a"))
    house.put(add_request(5, tenant="a", priority=-1))
    house.step()
    places = [explained(house, handle).position for handle in (5, 2, 3, 4)]
    assert [each.sequences_ahead for each in places] == [0, 1, 2, 3]
    assert [each.tokens_ahead for each in places] == [0, 5, 25, 55]
    assert places[0].tenant_share == 1.0 and not places[0].HasField("predicted_wait")


def test_an_id_that_is_not_in_flight(house: House) -> None:
    found = explained(house, 9)
    assert not found.HasField("request") and not found.sequences
