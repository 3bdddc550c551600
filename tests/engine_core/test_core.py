"""The step loop in-process: no sockets, no threads, a clock that the test moves."""

import logging
from collections.abc import Iterator

import pytest

from engine_core.errors import Code
from engine_core.io.inbox import FrontendGone, SocketsFailed
from engine_core.io.process_control import Stopped
from engine_core.request import NO_TOKEN, FinishReason
from engine_core.step.result import Result
from pagewire.internal.v1.engine_pb2 import (
    Abort,
    AbortByIds,
    GetLoad,
    Hello,
    ResetCache,
    Utility,
)
from pagewire.ipc.columns import unpack_u32
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import EPOCH, House


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """Parametrized indirectly by its number of rows."""
    made = House(rows=getattr(request, "param", 8))
    yield made
    made.inbox.close()


def test_a_request_from_arrival_to_end(house: House) -> None:
    message = add_request(1, prompt=5, n=2, max_tokens=3)
    house.put(message)
    house.run()
    ledger = house.outputs_of(b"a")
    for index in (0, 1):
        assert (ledger.tokens[1, index], ledger.ends[1, index]) == expected_output(message, index)
    assert ledger.started == [1]
    assert len(house.sent) == 3, "one message per step"


def test_two_frontends_get_what_is_theirs(house: House) -> None:
    house.put(add_request(1, request_id="x"), b"a")
    house.put(add_request(1, request_id="y"), b"b")
    house.run()
    assert {*house.outputs_of(b"a").tokens} == {*house.outputs_of(b"b").tokens} == {(1, 0)}


def test_hello_is_answered_from_the_loop(house: House) -> None:
    """By a Welcome until the frontend knows the epoch, then by the load."""
    house.put(Hello(known_epoch=0))
    ((_, message),) = house.step()
    assert message.welcome.epoch == EPOCH
    house.put(Hello(known_epoch=EPOCH))
    ((_, message),) = house.step()
    assert message.load.epoch == EPOCH


def test_a_frontend_that_forgot_the_epoch_forgot_its_requests(house: House) -> None:
    house.put(add_request(1, max_tokens=30), b"a")
    house.put(add_request(2, max_tokens=30), b"b")
    house.step()
    house.put(Hello(known_epoch=0), b"a")
    house.step()
    assert [request.handle for request in house.scheduler.requests] == [2]


@pytest.mark.parametrize("house", [1], indirect=True)
def test_the_load_is_true(house: House) -> None:
    house.put(add_request(1, prompt=10, max_tokens=9))
    house.put(add_request(2, prompt=7, max_tokens=9))
    house.step()
    house.put(Utility(call_id=5, get_load=GetLoad()))
    house.now = 1.0
    ((_, message), _) = house.step()
    assert message.utility_result.call_id == 5
    load = message.utility_result.load
    assert load.step == 1
    assert (load.load.running_requests, load.load.waiting_requests) == (1, 1)
    assert load.load.waiting_uncached_tokens == 7
    assert (load.load.kv_used_tokens, load.load.kv_total_tokens) == (12, 256)
    assert load.load.output_tokens_per_second == 1.0
    assert load.load.preemptions == 0


def test_a_reset_empties_the_prefix_cache(house: House) -> None:
    for handle, found in ((1, 0), (2, 8), (3, 0)):
        if handle == 3:
            house.put(Utility(call_id=5, reset_cache=ResetCache()), b"b")
        house.put(add_request(handle, list(range(20, 30)), max_tokens=2))
        house.run()
        assert house.outputs_of(b"a").cached[handle] == found
    (answer,) = (message.utility_result for frontend, message in house.sent if frontend == b"b")
    assert answer.call_id == 5 and answer.HasField("cache_reset")


def test_the_load_tells_of_the_prefix_cache(house: House) -> None:
    for handle in (1, 2):
        house.put(add_request(handle, list(range(20, 30)), max_tokens=2))
        house.run()
    house.put(Utility(call_id=5, get_load=GetLoad()))
    house.put(add_request(3))
    answer, *_ = house.step()
    load = answer[1].utility_result.load.load
    assert load.prefix_cache_hit_rate == 8 / 20
    assert load.kv_used_tokens == 0, "blocks that are only cached are free"


def test_an_abort_is_silent_and_idempotent(house: House) -> None:
    house.put(add_request(1, max_tokens=30))
    house.step()
    house.put(Abort(handle=1))
    house.put(Abort(handle=1))
    house.put(Abort(handle=99))
    assert house.step() == []
    assert house.scheduler.pool.num_free == 64


def test_an_abort_ends_what_waits() -> None:
    """Before it has run, and after it was preempted or sent again: nothing of it is computed any more."""
    house = House(rows=1)
    house.put(add_request(1, max_tokens=3))
    house.put(add_request(2, max_tokens=3))
    house.step()
    assert len(house.scheduler.waiting) == 1
    house.put(Abort(handle=2))
    house.step()
    assert len(house.scheduler.waiting) == 0 and len(house.scheduler.requests) == 1
    house.run()
    assert house.outputs_of(b"a").ends.keys() == {(1, 0)}


def test_a_frontend_cannot_abort_what_another_one_owns(house: House) -> None:
    house.put(add_request(1, max_tokens=3), b"a")
    house.put(Abort(handle=1), b"b")
    house.run()
    assert house.outputs_of(b"a").ends[1, 0] is FinishReason.MAX_TOKENS


def test_an_abort_by_id_reaches_requests_of_any_frontend(house: House) -> None:
    house.put(add_request(1, max_tokens=30), b"a")
    house.step()
    house.put(Utility(call_id=3, abort_by_ids=AbortByIds(request_ids=["request-1", "unknown"])), b"b")
    house.step()
    assert house.outputs_of(b"a").ends == {(1, 0): FinishReason.ABORTED}
    answers = [m.utility_result for frontend, m in house.sent if frontend == b"b"]
    assert [(a.call_id, list(a.aborted.request_ids)) for a in answers] == [(3, ["request-1"])]
    assert not house.scheduler.requests


def test_an_abort_overtakes_its_request(house: House) -> None:
    """It was being tokenized, or waited for a core in a frontend's journal: it knows how old it is. One
    that began after the Abort, with the same id, is another one."""
    call = AbortByIds(request_ids=["request-1", "group"])
    house.put(Utility(call_id=3, abort_by_ids=call), b"b")
    house.now += 5
    house.put(add_request(1, age_us=5_000_000), b"a")
    house.put(add_request(2, age_us=6_000_000, group="group"), b"a")
    house.step()
    assert {(f.handle, f.code, f.reason) for f in house.failures()} == {
        (1, 10, "REQUEST_ABORTED"),
        (2, 10, "REQUEST_ABORTED"),
    }
    house.put(add_request(3, request_id="request-1", age_us=4_900_000, max_tokens=2), b"a")
    house.put(add_request(4, group="group", max_tokens=2), b"a")
    house.run()
    assert house.outputs_of(b"a").ends.keys() == {(3, 0), (4, 0)}


def test_an_abort_of_a_group_ends_all_its_members(house: House) -> None:
    for handle in (1, 2):
        house.put(add_request(handle, group="group", max_tokens=30), b"a")
    house.put(add_request(3, max_tokens=3), b"a")
    house.step()
    house.put(Utility(call_id=3, abort_by_ids=AbortByIds(request_ids=["group"])), b"b")
    house.run()
    ends = house.outputs_of(b"a").ends
    assert ends[1, 0] is ends[2, 0] is FinishReason.ABORTED and ends[3, 0] is FinishReason.MAX_TOKENS
    assert [list(m.utility_result.aborted.request_ids) for f, m in house.sent if f == b"b"] == [["group"]]
    assert not house.scheduler.requests.named("group")


def test_an_id_in_flight_is_refused_and_free_again_afterwards(house: House) -> None:
    house.put(add_request(1, request_id="x", max_tokens=3), b"a")
    house.put(add_request(9, request_id="x"), b"b")
    house.run()
    (failure,) = house.failures()
    assert (failure.handle, failure.code, failure.epoch) == (9, Code.ALREADY_EXISTS, EPOCH)
    assert (failure.reason, failure.field) == ("REQUEST_ID_IN_USE", "request_id")
    assert house.outputs_of(b"a").ends[1, 0] is FinishReason.MAX_TOKENS
    house.put(add_request(10, request_id="x"), b"b")
    house.run()
    assert (10, 0) in house.outputs_of(b"b").ends


def test_a_handle_in_use_is_dropped_without_harm_to_its_owner(house: House) -> None:
    house.put(add_request(1, request_id="x", max_tokens=3))
    house.put(add_request(1, request_id="y"))
    house.run()
    assert not house.failures() and house.core.counters.bad_messages == 1
    assert house.outputs_of(b"a").ends[1, 0] is FinishReason.MAX_TOKENS


def test_what_cannot_be_served_is_refused_at_once(house: House) -> None:
    house.put(add_request(1, prompt=64))
    ((frontend, message),) = house.step()
    failure = message.request_failed
    assert frontend == b"a" and failure.handle == 1
    assert (failure.code, failure.reason, failure.field) == (
        Code.INVALID_ARGUMENT,
        "CONTEXT_LENGTH_EXCEEDED",
        "prompt",
    )


def test_a_bug_in_one_request_is_the_end_of_that_request_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add = house.scheduler.add

    def broken_add(request: object) -> None:
        add(request)  # type: ignore[arg-type]
        if request.handle == 2:  # type: ignore[attr-defined]
            raise RuntimeError("secret")

    monkeypatch.setattr(house.scheduler, "add", broken_add)
    for handle in (1, 2, 3):
        house.put(add_request(handle, max_tokens=3))
    with caplog.at_level(logging.CRITICAL):
        house.run()
    (failure,) = house.failures()
    assert (failure.handle, failure.code) == (2, Code.INTERNAL)
    assert "secret" not in failure.message
    assert {*house.outputs_of(b"a").ends} == {(1, 0), (3, 0)}
    assert house.core.counters.internal_errors == 1


@pytest.mark.parametrize("house", [2], indirect=True)
def test_output_without_probabilities_fails_the_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put(add_request(1))
    monkeypatch.setattr(house.worker, "execute", lambda plan: [NO_TOKEN])
    house.step()
    (failure,) = house.failures()
    assert (failure.handle, failure.code, failure.reason) == (1, Code.INTERNAL, "NO_LOGITS")


def test_a_frontend_that_is_gone_takes_its_requests_along(house: House) -> None:
    """It is told so, in case that it lives and was only too slow to read."""
    for handle in (1, 2, 3):
        house.put(add_request(handle, max_tokens=30), b"a")
    house.put(add_request(4, max_tokens=30), b"b")
    house.step(2)
    house.inbox.put(FrontendGone(b"a"))
    house.inbox.put(FrontendGone(b"a"))
    house.step()
    assert [request.handle for request in house.scheduler.requests] == [4]
    assert {failure.handle for failure in house.failures()} == {1, 2, 3}
    assert {failure.code for failure in house.failures()} == {Code.UNAVAILABLE}


def test_ends_by_the_clock_do_not_wait_for_the_step(house: House) -> None:
    house.put(add_request(1, max_tokens=30))
    house.put(add_request(2, max_tokens=30))
    house.step()
    (request,) = [r for r in house.scheduler.requests if r.handle == 1]
    request.time_limit_at = 1.0
    house.scheduler.states.timeouts.add(request)
    house.now = 1.0
    first, second = house.step()
    assert len(first[1].step_outputs.finish_reasons) == 1 and not first[1].step_outputs.token_ids
    assert second[1].step_outputs.token_ids


@pytest.mark.parametrize("house", [1], indirect=True)
def test_every_frontend_hears_of_the_end_of_the_core(house: House) -> None:
    house.put(add_request(1, max_tokens=30), b"a")
    house.put(add_request(2, max_tokens=30), b"b")
    house.step()
    house.put(add_request(3, max_tokens=30), b"b")
    house.put(Abort(handle=3))
    house.core.fail_all("ENGINE_DEAD", "the engine has died")
    failures = {(f.handle, f.code, f.reason) for f in house.failures()}
    assert failures == {(handle, Code.UNAVAILABLE, "ENGINE_DEAD") for handle in (1, 2, 3)}
    assert not house.scheduler.requests


def test_the_loop_ends_when_asked_to(house: House) -> None:
    house.worker.stopped = True
    with pytest.raises(Stopped):
        house.core.run()


def test_the_loop_does_not_outlive_its_sockets(house: House) -> None:
    house.inbox.put(SocketsFailed(OSError("x")))
    with pytest.raises(RuntimeError):
        house.core.run()


def test_broken_invariants_are_reported_when_idle(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """Once in a while: the check looks at every block."""
    house.scheduler.rows.free.pop()
    house.put(Abort(handle=1))
    house.core.step()
    assert house.core.counters.broken_invariants == 0, "there was something to do"
    house.worker.stopped = True
    for now in (0.0, 59.0, 61.0):
        house.now = now
        with caplog.at_level(logging.ERROR), pytest.raises(Stopped):
            house.core.step()
    assert house.core.counters.broken_invariants == 2
    assert "contradicts itself" in caplog.text


def test_a_worker_that_raises_ends_the_loop(house: House, monkeypatch: pytest.MonkeyPatch) -> None:

    def collect() -> Result:
        raise OSError("gone")

    monkeypatch.setattr(house.worker, "collect", collect)
    house.put(add_request(1))
    with pytest.raises(OSError, match="gone"):
        house.core.run()
    house.core.fail_all("ENGINE_DEAD", "the engine has died")
    assert [failure.handle for failure in house.failures()] == [1]


def test_sequences_that_have_ended_elsewhere_are_not_run() -> None:
    """A frontend sends a request again that another core had: what ended there takes no row here."""
    house = House()
    delivered = {0: [10, 11], 2: [12]}
    message = add_request(7, n=3, max_tokens=4, delivered=delivered)
    message.ended_indexes[:] = [1]
    house.put(message)
    house.step(3)
    positions = {
        index: position
        for _, sent in house.sent
        for index, position in zip(
            unpack_u32(sent.step_outputs.indexes), unpack_u32(sent.step_outputs.positions), strict=True
        )
    }
    assert positions == {0: 3, 2: 3}
    assert len(house.scheduler.requests) == 0


@pytest.mark.parametrize("ended", [[0], [0, 1], [9]])
def test_the_first_sequence_may_be_one_of_them(ended: list[int]) -> None:
    """It would have computed the prompt for its siblings."""
    house = House()
    message = add_request(7, n=3, max_tokens=2)
    message.ended_indexes[:] = ended
    house.put(message)
    house.step(2)
    indexes = {index for _, sent in house.sent for index in unpack_u32(sent.step_outputs.indexes)}
    assert indexes == {0, 1, 2} - set(ended)
    assert len(house.scheduler.requests) == 0


def test_a_long_step_keeps_no_frontend_in_doubt(house: House) -> None:
    """Heartbeats are answered while a step runs; all other messages wait."""
    beats: list[float] = []
    house.core._heartbeat = lambda: beats.append(house.now)
    house.put(add_request(1, max_tokens=9))
    house.step()
    house.put(Hello(known_epoch=0), b"b")
    house.put(Abort(handle=1))
    house.put(Hello(known_epoch=EPOCH), b"a")
    house.put(Hello(known_epoch=EPOCH), b"c")
    before = len(house.sent)
    house.worker.on_wait()
    assert [(name, message.WhichOneof("message")) for name, message in house.sent[before:]] == [
        (b"a", "adapters"),  # the core has not heard of it before
        (b"a", "load"),
        (b"c", "adapters"),
        (b"c", "load"),
    ]
    assert len(beats) == 2, "once in the step, once while it waited"
    house.step()
    assert (b"b", "welcome") in [(name, message.WhichOneof("message")) for name, message in house.sent]
    assert not house.scheduler.requests, "the Abort was not forgotten"
