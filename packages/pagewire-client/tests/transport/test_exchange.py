"""Requests of a multiplexed stream when calls break, servers drain, and single requests fail."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2

from pagewire.v1 import generation_pb2
from pagewire_client.errors import Cancelled, InvalidArgument, RpcError, Unavailable
from pagewire_client.results import Delta
from pagewire_client.transport.exchange import Command, Exchange, Message, MultiplexedRequest
from pagewire_client.transport.recovery import Recovery

EOS = generation_pb2.FINISH_REASON_EOS
ABORTED = generation_pb2.FINISH_REASON_ABORTED


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeCall:
    def __init__(self, server: int) -> None:
        self.server = server
        self.requests: dict[str, MultiplexedRequest] = {}
        self.written: list[Command] = []
        self.half_closed = False

    def write(self, command: Command) -> None:
        self.written.append(command)

    def half_close(self) -> None:
        self.half_closed = True


class World:
    """An exchange with fake calls, in the order in which it opened them."""

    def __init__(self, num_servers: int = 1, max_in_flight: int = 9) -> None:
        self.calls: list[FakeCall] = []
        self.clock = Clock()
        self.exchange = Exchange(
            self._open,
            lambda request: Recovery(request, num_servers, 0, None, self.clock),
            max_in_flight,
            self.clock,
        )

    def _open(self, server: int) -> FakeCall:
        self.calls.append(FakeCall(server))
        return self.calls[-1]

    def send(self, request_id: str = "", **fields) -> MultiplexedRequest:
        return self.exchange.send(generation_pb2.GenerateRequest(request_id=request_id, **fields))

    def sent(self, call: int = -1) -> list[str]:
        """Ids of the requests sent over a call."""
        commands = self.calls[call].written
        return [each.generate.request_id for each in commands if each.HasField("generate")]

    def receive(self, call: int, *parts: tuple[str, int, list[int], int]) -> None:
        """Delivers one message; parts are (id, position, tokens, finish reason)."""
        message = Message()
        for request_id, position, tokens, reason in parts:
            response = message.responses.add(request_id=request_id)
            if not position:
                response.seed, response.prompt.tokens = 7, 3
            output = response.sequences.add(position=position, token_ids=tokens)
            if reason:
                output.finish.reason = reason
        self.exchange.received(self.calls[call], message)

    def fail(self, call: int, request_id: str, code: grpc.StatusCode, reason: str = "") -> None:
        """Delivers a RequestError."""
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason))
        error = generation_pb2.RequestError(
            request_id=request_id, code=code.value[0], message="no", details=[detail]
        )
        self.exchange.received(self.calls[call], Message(errors=[error]))

    def events(self) -> Iterator[tuple[MultiplexedRequest, Delta | None]]:
        while self.exchange.ready:
            yield self.exchange.ready.popleft()


def socket_closed() -> RpcError:
    return Unavailable(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def test_requests_share_a_call_and_receive_their_own_deltas():
    world = World()
    first, second = world.send("a"), world.send("b")
    assert len(world.calls) == 1 and world.sent() == ["a", "b"]
    world.receive(0, ("a", 0, [1], 0), ("b", 0, [9], EOS), ("unknown", 0, [5], EOS))
    assert [(request, delta.token_ids) for request, delta in world.events()] == [(first, [1]), (second, [9])]
    assert second.done and not first.done and world.exchange.num_open == 1
    world.receive(0, ("a", 1, [2], EOS))
    assert first.done and first.generation.token_ids == [1, 2] and world.exchange.num_open == 0


def test_unfinished_requests_of_a_broken_call_continue():
    """On another server, with the seed and tokens so far, under the same ids: what runs goes on there."""
    world = World(num_servers=2)
    done, begun, fresh = world.send(), world.send(), world.send()
    names = world.sent()
    world.receive(0, (names[0], 0, [1], EOS), (names[1], 0, [5, 6], 0))
    world.exchange.ended(world.calls[0], socket_closed())
    assert world.exchange.resend_due() is None
    assert [call.server for call in world.calls] == [0, 1] and world.calls[0].half_closed
    again = [command.generate for command in world.calls[1].written]
    assert {each.request_id for each in again} == set(names[1:])
    assert again[0].sampling.seed == 7
    assert [list(each.token_ids) for each in again[0].continuation.sequences] == [[5, 6]]
    assert not again[1].HasField("continuation")
    world.receive(1, (again[0].request_id, 2, [7], EOS), (again[1].request_id, 0, [8], EOS))
    assert [each.generation.token_ids for each in (done, begun, fresh)] == [[1], [5, 6, 7], [8]]
    assert world.exchange.num_open == 0 and all(delta is not None for _, delta in world.events())


def test_a_call_that_ends_early_counts_as_broken():
    world = World()
    request = world.send()
    world.receive(0, (world.sent()[0], 0, [5], 0))
    world.exchange.ended(world.calls[0], None)
    world.exchange.resend_due()
    assert len(world.calls) == 2
    world.receive(1, (world.sent()[0], 1, [6], EOS))
    assert request.generation.token_ids == [5, 6]


def test_pauses_grow_until_the_request_fails():
    """While no server can be reached, after a connection that broke."""
    world = World()
    request = world.send()
    error, pauses = socket_closed(), []
    while len(pauses) < 60:
        world.exchange.ended(world.calls[-1], error)
        error = Unavailable(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: x")
        pause = world.exchange.resend_due()
        if pause is None and request.done:
            break
        pauses.append(pause or 0.0)
        world.clock.now += pause or 0.0
        world.exchange.resend_due()
    assert pauses[0] == 0.0 and pauses == sorted(pauses) and pauses[-1] > 0
    assert isinstance(request.error, Unavailable) and [delta for _, delta in world.events()] == [None]
    assert world.exchange.num_open == 0


def test_an_error_fails_one_request():
    world = World()
    bad, good = world.send("bad"), world.send("good")
    world.fail(0, "bad", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    world.fail(0, "", grpc.StatusCode.INVALID_ARGUMENT)
    assert list(world.events()) == [(bad, None)] and bad.done and not good.done
    assert isinstance(bad.error, InvalidArgument) and bad.error.reason == "INVALID_FIELD"
    assert world.exchange.resend_due() is None and world.sent() == ["bad", "good"]


def test_a_draining_server_finishes_its_requests():
    """Requests that it refuses go over another call; the old call is closed once it is empty."""
    world = World()
    old, new = world.send("old"), world.send("new")
    world.fail(0, "new", grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert world.exchange.resend_due() is None
    assert len(world.calls) == 2 and world.sent(1) == ["new"] and not world.calls[0].half_closed
    third = world.send("third")
    assert world.sent(1) == ["new", "third"]
    world.receive(0, ("old", 0, [1], EOS))
    assert old.done and world.calls[0].half_closed and not world.calls[1].half_closed
    world.exchange.ended(world.calls[0], None)
    world.receive(1, ("new", 0, [2], EOS), ("third", 0, [3], EOS))
    assert (new.generation.token_ids, third.generation.token_ids) == ([2], [3])


def test_the_end_of_an_idle_call_fails_nothing():
    world = World()
    world.send("a")
    world.receive(0, ("a", 0, [1], EOS))
    world.exchange.ended(world.calls[0], socket_closed())
    assert len(list(world.events())) == 1 and world.exchange.resend_due() is None
    world.send("b")
    assert len(world.calls) == 2 and world.sent() == ["b"]


def test_requests_above_max_in_flight_wait():
    world = World(max_in_flight=2)
    requests = [world.send(name) for name in "abcd"]
    assert world.sent() == ["a", "b"] and world.exchange.num_open == 4
    world.receive(0, ("b", 0, [1], EOS))
    assert world.sent() == ["a", "b", "c"]
    world.fail(0, "a", grpc.StatusCode.INVALID_ARGUMENT)
    assert world.sent() == list("abcd") and not requests[3].done


def test_own_ids_are_unique_among_unfinished_requests():
    world = World()
    world.send("a")
    with pytest.raises(ValueError, match="'a' is in flight"):
        world.send("a")
    world.receive(0, ("a", 0, [1], EOS))
    world.send("a")
    assert world.sent() == ["a", "a"]


def test_an_own_id_is_retried_until_the_engine_notices_the_dead_server():
    world = World()
    request = world.send("mine")
    world.receive(0, ("mine", 0, [5], 0))
    world.exchange.ended(world.calls[0], socket_closed())
    world.exchange.resend_due()
    world.fail(1, "mine", grpc.StatusCode.ALREADY_EXISTS)
    pause = world.exchange.resend_due()
    assert pause and world.sent(1) == ["mine"] and not request.done
    world.clock.now += pause
    world.exchange.resend_due()
    assert world.sent(1) == ["mine", "mine"]
    world.receive(1, ("mine", 1, [6], EOS))
    assert request.generation.token_ids == [5, 6]


def test_abort_of_a_request_that_a_server_holds():
    world = World()
    request = world.send("a")
    world.exchange.abort(request)
    assert list(world.calls[0].written[-1].abort.request_ids) == ["a"] and not request.done
    world.receive(0, ("a", 0, [], ABORTED))
    assert request.done and request.error is None and request.generation.finish_reason == "aborted"
    world.exchange.abort(request)
    assert len(world.calls[0].written) == 2


def test_an_aborted_request_is_not_sent_again():
    world = World()
    request = world.send("a")
    world.exchange.abort(request)
    world.exchange.ended(world.calls[0], socket_closed())
    assert request.done and isinstance(request.error, Unavailable)


def test_abort_of_a_request_that_no_server_holds():
    world = World(max_in_flight=1)
    first, second = world.send("a"), world.send("b")
    world.exchange.abort(second)
    assert isinstance(second.error, Cancelled) and world.exchange.num_open == 1
    world.exchange.ended(world.calls[0], socket_closed())
    world.exchange.abort(first)
    assert isinstance(first.error, Cancelled) and world.exchange.num_open == 0
    assert world.exchange.resend_due() is None and len(world.calls) == 1
    assert [request for request, _ in world.events()] == [second, first]
