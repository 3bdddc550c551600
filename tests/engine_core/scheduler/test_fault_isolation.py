"""A bug that shows while one request is looked at is the end of that request alone."""

import logging
from collections.abc import Iterator

import pytest

from engine_core.errors import Code
from engine_core.request import FinishReason, Request, Sequence
from engine_core.scheduler.states.beam_group import BeamGroup
from pagewire.logs import FIELDS, RequestFieldsFilter
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House


@pytest.fixture(params=[False, True], ids=["alone", "ahead"])
def house(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    caplog.set_level(logging.CRITICAL)
    yield House(ahead=request.param)


def runs(house: House, *ends: tuple[int, int]) -> None:
    """All that is left comes to its end; request 2 fails."""
    house.run()
    house.scheduler.check_invariants()
    (failure,) = house.failures()
    assert (failure.handle, failure.code, failure.reason) == (2, Code.INTERNAL, "INTERNAL")
    assert "secret" not in failure.message
    assert {*house.outputs_of(b"a").ends} == {*ends}
    assert house.core.counters.internal_errors == 1
    assert house.scheduler.pool.num_free == 64 and not house.scheduler.requests


def test_while_it_waits(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    look = house.scheduler.planner.admission.look

    def broken(sequence: Sequence) -> list[int] | None:
        if sequence.request.handle == 2:
            raise RuntimeError("secret")
        return look(sequence)

    monkeypatch.setattr(house.scheduler.planner.admission, "look", broken)
    for handle in (1, 2, 3):
        house.put(add_request(handle, n=2, max_tokens=3))
    runs(house, (1, 0), (1, 1), (3, 0), (3, 1))


def test_its_line_names_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    house, trace = House(), "4bf92f3577b34da6a3ce929d0e0e4736"

    def broken(sequence: Sequence) -> list[int] | None:
        raise RuntimeError("secret")

    monkeypatch.setattr(house.scheduler.planner.admission, "look", broken)
    message = add_request(2, tenant="alice", request_id="alice/r1")
    message.traceparent = f"00-{trace}-00f067aa0ba902b7-01"
    house.put(message)
    caplog.handler.addFilter(RequestFieldsFilter())
    house.step()
    (record,) = caplog.records
    assert [getattr(record, name) for name in FIELDS] == ["r1", "alice", trace]


def test_when_it_may_have_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Request.ending

    def broken(request: Request, output: object) -> tuple[FinishReason, int]:
        if request.handle == 2:
            raise RuntimeError("secret")
        return ending(request, output)  # type: ignore[arg-type]

    for handle in (1, 2, 3):
        house.put(add_request(handle, n=2, max_tokens=3))
    house.step()
    monkeypatch.setattr(Request, "ending", broken)
    runs(house, (1, 0), (1, 1), (3, 0), (3, 1))


def test_in_a_beam_search(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("secret")

    house.put(add_request(1, max_tokens=3))
    house.put(add_request(2, beams=beam_search(3), max_tokens=9, ignore_eos=True))
    house.put(add_request(3, max_tokens=9))
    house.step(3)
    monkeypatch.setattr(BeamGroup, "take", broken)
    runs(house, (1, 0), (3, 0))


def test_what_is_about_the_process_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Sequence) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(house.scheduler.planner.admission, "look", interrupted)
    house.put(add_request(1))
    with pytest.raises(KeyboardInterrupt):
        house.step()
