"""When, where and with what a client retries; and both clients against servers that die."""

import hashlib
from collections.abc import Callable, Iterator

import grpc
import pytest

from pagewire import AsyncClient, Client
from pagewire.v1 import generation_pb2
from pagewire_client.errors import (
    AlreadyExists,
    Cancelled,
    InternalError,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from pagewire_client.transport.recovery import MAX_BREAKS, PATIENCE_S, Recovery
from tests.pagewire import fakes

GONE = "failed to connect to all addresses; last error: UNKNOWN"
RESET = "recvmsg:Connection reset by peer"


def unavailable(message: str, reason: str = "") -> RpcError:
    error = Unavailable(grpc.StatusCode.UNAVAILABLE, message)
    error.reason = reason
    return error


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(num_servers: int = 1, timeout: float | None = None, **fields) -> tuple[Recovery, Clock]:
    clock = Clock()
    request = generation_pb2.GenerateRequest(**fields)
    return Recovery(request, num_servers, 0, timeout, clock), clock


def message(
    index: int, ids: list[int], first: bool = False, reason: int = 0
) -> generation_pb2.GenerateResponse:
    response = generation_pb2.GenerateResponse()
    if first:
        response.seed, response.prompt.tokens = 77, 3
    output = response.sequences.add(index=index, token_ids=ids, text="x" * len(ids))
    if reason:
        output.finish.reason = reason
    return response


def test_after_an_overload_each_other_server_is_tried_once():
    overload = ResourceExhausted(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request would wait for 9.0 s")
    recovery, _ = make(num_servers=3)
    assert [recovery.after(overload) for _ in range(3)] == [0.0, 0.0, None]
    recovery, _ = make()
    assert recovery.after(overload) is None
    recovery, _ = make(num_servers=3)
    recovery.received(message(0, [1], first=True))
    assert recovery.after(unavailable(RESET)) == 0.0
    assert recovery.after(overload) is None, "a broken stream may continue on any server"


def test_a_continuation_names_its_files_before_it_sends_them_again():
    part = {"media": {"data": b"one"}}
    prompt = {"media": [{"data": b"two"}], "chat": {"messages": [{"role": "user", "content": [part]}]}}
    recovery, _ = make(num_servers=2, prompt=prompt)
    assert recovery.attempt()[0].prompt.media[0].data == b"two"
    recovery.received(message(0, [1], first=True))
    assert recovery.after(unavailable(RESET)) == 0.0
    named, server = recovery.attempt()[0].prompt, recovery.server
    assert named.media[0].sha256 == hashlib.sha256(b"two").digest()
    assert named.chat.messages[0].content[0].media.sha256 == hashlib.sha256(b"one").digest()
    unknown = RpcError(grpc.StatusCode.FAILED_PRECONDITION, "prompt.media[0].sha256: send the file")
    unknown.reason = "MEDIA_UNKNOWN"
    assert recovery.after(unknown) == 0.0 and recovery.server == server
    assert recovery.attempt()[0].prompt == generation_pb2.GenerateRequest(prompt=prompt).prompt
    assert recovery.after(unknown) is None, "it is asked for once"


def test_an_absent_server_is_reported_at_once():
    recovery, _ = make()
    assert recovery.after(unavailable(GONE)) is None
    recovery, _ = make()
    assert recovery.after(unavailable("the engine is not ready: starting", "ENGINE_NOT_READY")) is None


@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_goes_away_is_no_fault_of_the_request(begun):
    """However many servers drain in a row, as long as one accepts the request in time."""
    recovery, clock = make()
    if begun:
        recovery.received(message(0, [1], first=True))
    for _ in range(3 * MAX_BREAKS):
        assert recovery.after(unavailable("this server is going away", "DRAINING")) is not None
    clock.now += PATIENCE_S + 1
    assert recovery.after(unavailable("this server is going away", "DRAINING")) is None


def test_a_call_that_reaches_a_server_in_its_last_moment_is_sent_again():
    recovery, _ = make()
    assert recovery.after(Cancelled(grpc.StatusCode.CANCELLED, "CANCELLED")) == 0.0
    recovery, _ = make()
    assert recovery.after(Cancelled(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")) is None


@pytest.mark.parametrize("begun", [False, True])
def test_a_proxy_whose_server_is_gone_resets_the_stream(begun):
    """nginx has nothing better when the answer has begun. What our own server calls INTERNAL has a reason."""
    reset = InternalError(grpc.StatusCode.INTERNAL, "Stream removed (RST_STREAM (Received RST_STREAM ...))")
    recovery, _ = make()
    if begun:
        recovery.received(message(0, [1], first=True))
    assert recovery.after(reset) == 0.0
    reset.reason = "INTERNAL"
    assert recovery.after(reset) is None


def test_each_address_is_asked_once():
    recovery, _ = make(3)
    assert [recovery.after(unavailable(GONE)) for _ in range(3)] == [0.0, 0.0, None]
    recovery, _ = make(3)
    servers = [recovery.server]
    while recovery.after(unavailable(GONE)) is not None:
        servers.append(recovery.server)
    assert servers == [0, 1, 2]


def test_what_has_begun_waits_for_a_server():
    recovery, clock = make()
    recovery.received(message(0, [1], first=True))
    pauses = []
    while (pause := recovery.after(unavailable(GONE if pauses else RESET))) is not None:
        pauses.append(pause)
        clock.now += pause + 0.01
    assert pauses[:4] == [0.0, 0.2, 0.4, 0.8] and max(pauses) == 1.0
    assert PATIENCE_S - 2 < sum(pauses) < PATIENCE_S + 2


def test_a_call_whose_connection_breaks_is_sent_again():
    """Nothing of the answer was received: it may as well be another one."""
    recovery, _ = make(request_id="x")
    assert recovery.after(unavailable(RESET)) == 0.0
    assert recovery.attempt()[0].request_id == "x" and not recovery.attempt()[0].HasField("continuation")


def test_what_breaks_every_connection_ends():
    recovery, _ = make()
    recovery.received(message(0, [1], first=True))
    assert all(recovery.after(unavailable(RESET)) is not None for _ in range(MAX_BREAKS))
    assert recovery.after(unavailable(RESET)) is None


def test_a_server_that_waits_for_its_engine_breaks_nothing():
    """A frontend died, and the other one's engine is being started again: it refuses for seconds."""
    recovery, clock = make(2)
    recovery.received(message(0, [1], first=True))
    assert recovery.after(unavailable(RESET)) == 0.0
    refusals = 0
    while (pause := recovery.after(unavailable("not ready", "ENGINE_NOT_READY"))) is not None:
        refusals += 1
        clock.now += pause + 0.01
    assert refusals > 3 * MAX_BREAKS and clock.now > PATIENCE_S - 2


@pytest.mark.parametrize("begun", [False, True])
def test_each_server_that_was_found_begins_the_wait_anew(begun):
    """Each is killed before it has a new token, as where all prompts have to be computed again."""
    recovery, clock = make()
    if begun:
        recovery.received(message(0, [1], first=True))
    for _ in range(MAX_BREAKS):
        assert recovery.after(unavailable(RESET)) is not None
        clock.now += PATIENCE_S - 1
        assert recovery.after(unavailable(GONE)) is not None
        clock.now += 2
    assert recovery.after(unavailable(GONE)) is None


def test_a_stream_that_a_dead_server_gave_nothing_asks_the_next_one_as_soon_as_others():
    """Its pauses grew from one death to the next, so that it came last each time, behind all that had got
    something meanwhile."""
    recovery, _ = make()
    recovery.received(message(0, [1], first=True))
    for _ in range(MAX_BREAKS):
        assert recovery.after(unavailable(RESET)) == 0.0
        assert [recovery.after(unavailable(GONE)) for _ in range(3)] == [0.2, 0.4, 0.8]


def test_progress_is_a_new_beginning():
    recovery, clock = make()
    for number in range(20):
        recovery.received(message(0, [number], first=True))
        assert recovery.after(unavailable(RESET)) == 0.0
        clock.now += PATIENCE_S


def test_other_errors_are_the_end():
    recovery, _ = make(2)
    recovery.received(message(0, [1], first=True))
    assert recovery.after(InternalError(grpc.StatusCode.INTERNAL, "REQUEST_QUARANTINED")) is None
    in_use = AlreadyExists(grpc.StatusCode.ALREADY_EXISTS, "in use")
    assert recovery.after(in_use) is None
    recovery.after(unavailable(RESET))
    assert recovery.after(in_use) is not None  # the engine has not missed the dead frontend yet


def test_a_request_that_a_broken_call_has_taken_is_sent_again():
    """Their messages to the engine came in the other order. (Found by simulation.)"""
    taken = RpcError(grpc.StatusCode.ABORTED, "the request goes on in a later call")
    taken.reason = "CONTINUED_ELSEWHERE"
    recovery, _ = make(2, request_id="x")
    assert recovery.after(unavailable(RESET)) == 0.0
    assert recovery.after(taken) is not None
    recovery.received(message(0, [1], first=True))
    for _ in range(MAX_BREAKS - 1):
        assert recovery.after(taken) is not None
    assert recovery.after(taken) is None, "another program has it"
    assert make(2, request_id="x")[0].after(taken) is None


def test_what_a_frontend_repeats_is_no_progress():
    """A continuation repeats ends at once, of its own accord; then the engine refused its request id, which
    the dead frontend still had, and the client gave up. (Found by simulation.)"""
    recovery, _ = make(2, request_id="x")
    recovery.received(message(0, [1], first=True, reason=generation_pb2.FINISH_REASON_EOS))
    recovery.received(message(1, [2]))
    assert recovery.after(unavailable(RESET)) == 0.0
    in_use = AlreadyExists(grpc.StatusCode.ALREADY_EXISTS, "in use")
    for _ in range(3):
        recovery.received(message(0, [], first=True, reason=generation_pb2.FINISH_REASON_EOS))
        assert recovery.after(in_use) is not None
    recovery.received(message(1, [3]))
    assert recovery.after(in_use) is None


def test_a_continuation():
    stopping = {"time_limit": {"seconds": 10}}
    recovery, clock = make(timeout=20.0, sampling={"n": 2, "temperature": 0.5}, stopping=stopping)
    recovery.received(message(0, [1, 2], first=True))
    recovery.received(message(1, [5], reason=generation_pb2.FINISH_REASON_STOP))
    recovery.received(message(0, [3]))
    clock.now = 4.0
    request, timeout = recovery.attempt()
    assert timeout == 16.0 and request.sampling.seed == 77
    assert request.stopping.time_limit.ToSeconds() == 6
    assert {part.index: list(part.token_ids) for part in request.continuation.sequences} == {
        0: [1, 2, 3],
        1: [5],
    }
    again = message(1, [], first=True, reason=generation_pb2.FINISH_REASON_STOP)
    again.sequences.add(index=0, token_ids=[4], position=3)
    (delta,) = recovery.received(again)
    assert (delta.index, delta.token_ids) == (0, [4])
    assert recovery.generation.token_ids == [1, 2, 3, 4]


def test_a_continuation_keeps_its_adapter():
    """Whatever its name stands for by then."""
    recovery, _ = make()
    first = message(0, [1, 2], first=True)
    first.adapter.name, first.adapter.digest = "a", b"d" * 32
    recovery.received(first)
    recovery.received(message(0, [3]))
    request, _ = recovery.attempt()
    assert request.continuation.adapter_digest == b"d" * 32


def test_a_continuation_keeps_the_digests_of_what_was_fetched():
    recovery, _ = make()
    first = message(0, [1, 2], first=True)
    first.media_digests.extend([b"m" * 32, b"n" * 32])
    recovery.received(first)
    recovery.received(message(0, [3]))
    request, _ = recovery.attempt()
    assert list(request.continuation.media_digests) == recovery.generation.media_digests
    assert recovery.generation.media_digests == [b"m" * 32, b"n" * 32]


def breaking(request, context):
    """Two messages of four, unless it is a continuation."""
    start = len(request.continuation.sequences[0].token_ids) if request.HasField("continuation") else 0
    for position in range(start, 4):
        if position == start + 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        response = generation_pb2.GenerateResponse()
        if position == start:
            response.seed, response.prompt.tokens = 9, 1
        output = response.sequences.add(token_ids=[position], text=str(position), position=position)
        if position == 3:
            output.finish.reason = generation_pb2.FINISH_REASON_MAX_TOKENS
        yield response


def test_a_stream_goes_on_elsewhere():
    first, second = fakes.FakeService(), fakes.FakeService()
    first.respond = second.respond = breaking
    with fakes.running(first) as one, fakes.running(second) as other, Client([one, other]) as client:
        deltas = list(client.stream("a", temperature=1.0))
    assert [delta.position for delta in deltas] == [0, 1, 2, 3]
    assert "".join(delta.text for delta in deltas) == "0123"
    (again,) = second.requests
    assert again.sampling.seed == 9 and list(again.continuation.sequences[0].token_ids) == [0, 1]
    assert len(first.requests) == 1


async def test_a_stream_goes_on_elsewhere_async():
    first, second = fakes.FakeService(), fakes.FakeService()
    first.respond = second.respond = breaking
    with fakes.running(first) as one, fakes.running(second) as other:
        async with AsyncClient([one, other]) as client, client.stream("a") as stream:
            result = await stream.result()
    assert result.text == "0123" and result.token_ids == [0, 1, 2, 3]
    assert len(second.requests) == 1


async def test_an_address_without_a_server():
    """Calls of any kind go to the next one."""
    service = fakes.FakeService()
    service.respond = breaking
    with fakes.running(service) as address:
        with Client(["127.0.0.1:9", address]) as client:
            assert client.model().name == "m"
        with Client(["127.0.0.1:9", address]) as client:
            assert client.stream("a").result().text == "0123"
        async with AsyncClient(["127.0.0.1:9", address]) as client:
            assert (await client.generate("a")).text == "0"
            assert (await client.model()).name == "m"


def test_no_address():
    with pytest.raises(ValueError):
        Client([])


def dies_at(places: Iterator[int]) -> Callable[..., Iterator[generation_pb2.GenerateResponse]]:
    """Answers with those of four tokens that the continuation lacks, and breaks off before the one at the
    next of these places."""

    def respond(request, context):
        held = [id for each in request.continuation.sequences for id in each.token_ids]
        end = next(places)
        for token in range(len(held), min(end, 4)):
            reason = generation_pb2.FINISH_REASON_MAX_TOKENS if token == 3 else 0
            response = message(0, [token], first=token == len(held), reason=reason)
            response.request_id = "r"
            yield response
        if end < 4:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    return respond


async def test_a_unary_call_that_breaks_goes_on_as_a_stream():
    """So that more breaks than are endured in a row lose nothing, where each time a token came."""
    service, breaks = fakes.FakeService(), [0, 1, 1, 2, 2, 3, 3, 4]
    assert len(breaks) > MAX_BREAKS
    with fakes.running(service) as address:
        with Client(address) as client:
            service.respond = dies_at(iter(breaks))
            assert client.generate("a").token_ids == [0, 1, 2, 3]
        async with AsyncClient(address) as aclient:
            service.respond = dies_at(iter(breaks))
            assert (await aclient.generate("a")).token_ids == [0, 1, 2, 3]
    held = [
        [id for each in request.continuation.sequences for id in each.token_ids]
        for request in service.requests
    ]
    assert held == 2 * [[], [], [0], [0], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert [request.sampling.seed for request in service.requests[2:8]] == [77] * 6


def complete_then_gone(request, context):
    """The whole answer; the server dies before it can say that this was all."""
    response = generation_pb2.GenerateResponse(seed=9)
    output = response.sequences.add(token_ids=[5], text="x")
    output.finish.reason = generation_pb2.FINISH_REASON_TIME_LIMIT
    response.prompt.tokens = 1
    yield response
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


async def test_what_is_complete_is_not_continued():
    """It would be refused where all is delivered in one piece (best_of, beams), and be computed in vain where
    time was up. (Found by simulation.)"""
    service, other = fakes.FakeService(), fakes.FakeService()
    service.respond = complete_then_gone
    with fakes.running(service) as one, fakes.running(other) as two:
        with Client([one, two]) as client:
            assert [delta.text for delta in client.stream("a")] == ["x"]
        async with AsyncClient([one, two]) as client, client.stream("a") as stream:
            assert (await stream.result()).text == "x"
    assert not other.requests
    recovery, _ = make(sampling={"n": 2})
    recovery.received(message(1, [1], first=True, reason=generation_pb2.FINISH_REASON_EOS))
    assert not recovery.is_complete_despite(unavailable(RESET))
    recovery.received(message(0, [1], reason=generation_pb2.FINISH_REASON_EOS))
    assert recovery.is_complete_despite(unavailable(RESET))
    assert not recovery.is_complete_despite(InternalError(grpc.StatusCode.INTERNAL, "a bug"))


def test_with_patience_a_request_waits_for_its_first_server():
    """For clients that know that the server comes back: a private service that restarts."""
    clock = Clock()
    recovery = Recovery(generation_pb2.GenerateRequest(), 1, 0, None, clock, patience=1e6)
    loading = unavailable("the engine is loading", "ENGINE_NOT_READY")
    pauses = [recovery.after(loading if number % 2 else unavailable(GONE)) for number in range(2000)]
    assert pauses[0] == 0.0 and pauses[1:] == sorted(pauses[1:]) and pauses[-1] == 1.0
    clock.now = 1e6 + 1
    assert recovery.after(loading) is None
    assert recovery.after(InternalError(grpc.StatusCode.INTERNAL, "a bug")) is None
