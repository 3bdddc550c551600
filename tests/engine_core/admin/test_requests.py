"""Requests in flight, as the core lists them out of its own tables."""

from collections.abc import Iterator

import pytest

from engine_core.admin.requests import _CAUSES
from engine_core.scheduler.outputs.wait_causes import Cause
from pagewire.internal.v1.engine_pb2 import ListPosition, ListRequests
from pagewire.v1 import inspection_pb2 as pb
from pagewire.v1.generation_pb2 import Waits
from tests.engine_core.admin.asking import ask
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

LONG = list(range(20, 32))


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """Parametrized indirectly by the arguments of House."""
    made = House(**getattr(request, "param", {}))
    yield made
    made.inbox.close()


def listed(house: House, limit: int = 100, tenant: str | None = None) -> pb.ListRequestsResponse:
    return ask(house, list_requests=ListRequests(limit=limit, tenant=tenant)).requests


@pytest.mark.parametrize("house", [{"rows": 1}], indirect=True)
def test_one_runs_and_one_waits(house: House) -> None:
    house.put(add_request(1, tenant="a", max_tokens=30, ignore_eos=True, age_us=500_000), b"\xab")
    house.step()
    house.now = 2.0
    house.put(add_request(2, tenant="b", priority=3, max_tokens=30))
    house.step(2)
    house.now = 5.0
    found = listed(house)
    first, second = found.requests
    assert found.total == 2 and [first.request_id, second.request_id] == ["request-1", "request-2"]
    assert (first.phase, first.waits_for) == (pb.REQUEST_PHASE_DECODE, pb.WAIT_CAUSE_UNSPECIFIED)
    assert (first.tenant, first.frontend, first.prompt_tokens) == ("a", "ab", 5)
    assert first.output_tokens == 3 and first.blocks == 2 and not first.shared_blocks
    assert first.age.ToNanoseconds() == 5_500_000_000
    assert (second.phase, second.waits_for) == (pb.REQUEST_PHASE_QUEUED, pb.WAIT_CAUSE_ROWS)
    assert (second.priority, second.sequences, second.running_sequences, second.blocks) == (3, 1, 0, 0)
    assert second.timings.queue.ToSeconds() == second.timings.waits.rows.ToSeconds() == 3


def test_the_phases_sum_to_the_age(house: House) -> None:
    house.put(add_request(1, max_tokens=30, ignore_eos=True, age_us=1_000_000))
    house.step()
    house.now = 4.0
    (info,) = listed(house).requests
    timings = info.timings
    parts = (timings.preprocess, timings.queue, timings.prefill, timings.decode, timings.preempted)
    assert sum(part.ToNanoseconds() for part in parts) == timings.total.ToNanoseconds() == 5 * 10**9


@pytest.mark.parametrize("house", [{"budget": 4}], indirect=True)
def test_a_long_prompt_and_then_its_output(house: House) -> None:
    house.put(add_request(1, prompt=12, max_tokens=3, ignore_eos=True))
    house.step()
    phases = [listed(house).requests[0].phase for _ in range(4)]
    assert phases[0] == pb.REQUEST_PHASE_PREFILL and phases[-1] == pb.REQUEST_PHASE_DECODE


def test_the_last_step_is_finishing() -> None:
    house = House(ahead=True)
    house.put(add_request(1, max_tokens=1, ignore_eos=True))
    house.step()
    (info,) = listed(house).requests
    assert info.phase == pb.REQUEST_PHASE_FINISHING
    house.inbox.close()


@pytest.mark.parametrize("house", [{"blocks": 12}], indirect=True)
def test_what_was_preempted_waits_for_blocks(house: House) -> None:
    for handle in (1, 2):
        house.put(add_request(handle, prompt=12, max_tokens=20, ignore_eos=True))
    found = []
    while not found:
        house.step()
        house.now += 1.0
        found = [each for each in listed(house).requests if each.phase == pb.REQUEST_PHASE_PREEMPTED]
    (info,) = found
    assert info.waits_for == pb.WAIT_CAUSE_BLOCKS and info.preemptions == 1
    house.now += 5.0
    (info,) = (each for each in listed(house).requests if each.preemptions)
    assert info.timings.preempted.ToSeconds() >= 5


def test_a_grammar_is_compiled_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    message = add_request(1)
    message.grammar = "{}"
    monkeypatch.setattr(house.worker, "take_compiled", list)
    house.put(message)
    house.step()
    (info,) = listed(house).requests
    assert (info.phase, info.waits_for) == (pb.REQUEST_PHASE_PREPARING, pb.WAIT_CAUSE_GRAMMAR)


def test_shared_and_cached_blocks(house: House) -> None:
    house.put(add_request(1, LONG, max_tokens=30, ignore_eos=True))
    house.step()
    house.put(add_request(2, LONG, n=2, max_tokens=30, ignore_eos=True))
    house.step()
    first, second = listed(house).requests
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 8)
    assert first.shared_blocks == second.shared_blocks == 2
    assert second.sequences == 2 and second.blocks < 2 * first.blocks, "siblings share the prompt"


def test_limits_and_tenants(house: House) -> None:
    for handle in range(1, 7):
        house.put(add_request(handle, tenant="ab"[handle % 2], max_tokens=30, ignore_eos=True))
    house.step()
    assert [each.request_id for each in listed(house, limit=2).requests] == ["request-1", "request-2"]
    assert listed(house, limit=2).total == 6
    of_b = listed(house, tenant="b")
    assert {each.tenant for each in of_b.requests} == {"b"} and of_b.total == len(of_b.requests) == 3
    assert not listed(house, tenant="").total


def test_pages_are_in_order_of_arrival_at_frontends(house: House) -> None:
    """A request that another core had came later to this one than it came to its frontend."""
    house.now = 50.0
    for handle, age in ((1, 10), (2, 30), (3, 20), (4, 20)):
        house.put(add_request(handle, age_us=age * 10**6, max_tokens=30, ignore_eos=True))
    house.step()
    names = [each.request_id for each in listed(house).requests]
    assert names == ["request-2", "request-3", "request-4", "request-1"]
    infos = listed(house, limit=2).requests
    assert [each.request_id for each in infos] == names[:2]
    house.now = 51.0
    after = ListPosition(number=infos[-1].arrival_time.ToNanoseconds(), name=infos[-1].request_id)
    rest = ask(house, list_requests=ListRequests(limit=9, after=after)).requests
    assert [each.request_id for each in rest.requests] == names[2:] and rest.total == 4


def test_every_cause_has_a_public_one() -> None:
    assert set(_CAUSES) == set(Cause)
    assert {each.name.lower() for each in Cause} <= {field.name for field in Waits.DESCRIPTOR.fields}
