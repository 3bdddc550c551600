"""What many requests over one stream do when lines break, servers leave, and one of them fails."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2

from pagewire.client.errors import Cancelled, InvalidArgument, RpcError, Unavailable
from pagewire.client.exchange import Command, Exchange, Message, MultiplexedRequest
from pagewire.client.recovery import Recovery
from pagewire.client.results import Delta
from pagewire.v1 import generation_pb2

EOS = generation_pb2.FINISH_REASON_EOS
ABORTED = generation_pb2.FINISH_REASON_ABORTED


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Line:
    def __init__(self, place: int) -> None:
        self.place = place
        self.requests: dict[str, MultiplexedRequest] = {}
        self.said: list[Command] = []
        self.half_closed = False

    def say(self, command: Command) -> None:
        self.said.append(command)

    def half_close(self) -> None:
        self.half_closed = True


class World:
    """An exchange, and the lines that it has opened."""

    def __init__(self, num_servers: int = 1, max_in_flight: int = 9) -> None:
        self.lines: list[Line] = []
        self.clock = Clock()
        self.exchange = Exchange(
            self._open,
            lambda request: Recovery(request, num_servers, 0, None, self.clock),
            max_in_flight,
            self.clock,
        )

    def _open(self, place: int) -> Line:
        self.lines.append(Line(place))
        return self.lines[-1]

    def begin(self, request_id: str = "", **fields) -> MultiplexedRequest:
        return self.exchange.begin(generation_pb2.GenerateRequest(request_id=request_id, **fields))

    def sent(self, line: int = -1) -> list[str]:
        """Ids of what was begun on a line."""
        commands = self.lines[line].said
        return [each.generate.request_id for each in commands if each.HasField("generate")]

    def bring(self, line: int, *parts: tuple[str, int, list[int], int]) -> None:
        """A message: (id, position, tokens, reason) of each request."""
        message = Message()
        for request_id, position, tokens, reason in parts:
            response = message.responses.add(request_id=request_id)
            if not position:
                response.seed, response.prompt.tokens = 7, 3
            output = response.sequences.add(position=position, token_ids=tokens)
            if reason:
                output.finish.reason = reason
        self.exchange.received(self.lines[line], message)

    def fail(self, line: int, request_id: str, code: grpc.StatusCode, reason: str = "") -> None:
        """A RequestError."""
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=reason))
        error = generation_pb2.RequestError(
            request_id=request_id, code=code.value[0], message="no", details=[detail]
        )
        self.exchange.received(self.lines[line], Message(errors=[error]))

    def news(self) -> Iterator[tuple[MultiplexedRequest, Delta | None]]:
        while self.exchange.ready:
            yield self.exchange.ready.popleft()


def gone() -> RpcError:
    return Unavailable(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def test_all_requests_share_a_line_and_each_gets_its_own():
    world = World()
    first, second = world.begin("a"), world.begin("b")
    assert len(world.lines) == 1 and world.sent() == ["a", "b"]
    world.bring(0, ("a", 0, [1], 0), ("b", 0, [9], EOS), ("unknown", 0, [5], EOS))
    assert [(request, delta.token_ids) for request, delta in world.news()] == [(first, [1]), (second, [9])]
    assert second.done and not first.done and world.exchange.num_open == 1
    world.bring(0, ("a", 1, [2], EOS))
    assert first.done and first.generation.token_ids == [1, 2] and world.exchange.num_open == 0


def test_a_line_that_breaks_is_continued_for_what_has_not_ended():
    """Elsewhere, with the seed and the tokens so far, under new ids: the old ones may be in use yet."""
    world = World(num_servers=2)
    done, begun, fresh = world.begin(), world.begin(), world.begin()
    names = world.sent()
    world.bring(0, (names[0], 0, [1], EOS), (names[1], 0, [5, 6], 0))
    world.exchange.ended(world.lines[0], gone())
    assert world.exchange.send_due() is None
    assert [line.place for line in world.lines] == [0, 1] and world.lines[0].half_closed
    again = [command.generate for command in world.lines[1].said]
    assert len(again) == 2 and not {each.request_id for each in again} & set(names)
    assert again[0].sampling.seed == 7
    assert [list(each.token_ids) for each in again[0].continuation.sequences] == [[5, 6]]
    assert not again[1].HasField("continuation")
    world.bring(1, (again[0].request_id, 2, [7], EOS), (again[1].request_id, 0, [8], EOS))
    assert [each.generation.token_ids for each in (done, begun, fresh)] == [[1], [5, 6, 7], [8]]
    assert world.exchange.num_open == 0 and all(delta is not None for _, delta in world.news())


def test_a_stream_that_ends_too_early_is_one_that_broke():
    world = World()
    request = world.begin()
    world.bring(0, (world.sent()[0], 0, [5], 0))
    world.exchange.ended(world.lines[0], None)
    world.exchange.send_due()
    assert len(world.lines) == 2
    world.bring(1, (world.sent()[0], 1, [6], EOS))
    assert request.generation.token_ids == [5, 6]


def test_pauses_grow_and_patience_ends():
    world = World()
    request = world.begin()
    pauses = []
    for _ in range(9):
        world.exchange.ended(world.lines[-1], gone())
        pause = world.exchange.send_due()
        if pause is None and request.done:
            break
        pauses.append(pause)
        world.clock.now += pause or 0.0
        world.exchange.send_due()
    assert pauses[0] is None and pauses[1:] == sorted(pauses[1:]) and pauses[-1] > 0
    assert isinstance(request.error, Unavailable) and [delta for _, delta in world.news()] == [None]
    assert world.exchange.num_open == 0


def test_an_error_is_of_one_request():
    world = World()
    bad, good = world.begin("bad"), world.begin("good")
    world.fail(0, "bad", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    world.fail(0, "", grpc.StatusCode.INVALID_ARGUMENT)
    assert list(world.news()) == [(bad, None)] and bad.done and not good.done
    assert isinstance(bad.error, InvalidArgument) and bad.error.reason == "INVALID_FIELD"
    assert world.exchange.send_due() is None and world.sent() == ["bad", "good"]


def test_who_leaves_finishes_what_it_has():
    """What it refuses goes over another line; the old one is closed when it has nothing left."""
    world = World()
    old, new = world.begin("old"), world.begin("new")
    world.fail(0, "new", grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert world.exchange.send_due() is None
    assert len(world.lines) == 2 and world.sent(1) == ["new"] and not world.lines[0].half_closed
    third = world.begin("third")
    assert world.sent(1) == ["new", "third"]
    world.bring(0, ("old", 0, [1], EOS))
    assert old.done and world.lines[0].half_closed and not world.lines[1].half_closed
    world.exchange.ended(world.lines[0], None)
    world.bring(1, ("new", 0, [2], EOS), ("third", 0, [3], EOS))
    assert (new.generation.token_ids, third.generation.token_ids) == ([2], [3])


def test_an_idle_line_that_is_gone_bothers_nobody():
    world = World()
    world.begin("a")
    world.bring(0, ("a", 0, [1], EOS))
    world.exchange.ended(world.lines[0], gone())
    assert len(list(world.news())) == 1 and world.exchange.send_due() is None
    world.begin("b")
    assert len(world.lines) == 2 and world.sent() == ["b"]


def test_so_many_are_sent_and_the_others_wait():
    world = World(max_in_flight=2)
    requests = [world.begin(name) for name in "abcd"]
    assert world.sent() == ["a", "b"] and world.exchange.num_open == 4
    world.bring(0, ("b", 0, [1], EOS))
    assert world.sent() == ["a", "b", "c"]
    world.fail(0, "a", grpc.StatusCode.INVALID_ARGUMENT)
    assert world.sent() == list("abcd") and not requests[3].done


def test_own_ids_are_in_flight_once():
    world = World()
    world.begin("a")
    with pytest.raises(ValueError, match="'a' is in flight"):
        world.begin("a")
    world.bring(0, ("a", 0, [1], EOS))
    world.begin("a")
    assert world.sent() == ["a", "a"]


def test_an_own_id_is_tried_again_until_the_engine_has_missed_the_dead_server():
    world = World()
    request = world.begin("mine")
    world.bring(0, ("mine", 0, [5], 0))
    world.exchange.ended(world.lines[0], gone())
    world.exchange.send_due()
    world.fail(1, "mine", grpc.StatusCode.ALREADY_EXISTS)
    pause = world.exchange.send_due()
    assert pause and world.sent(1) == ["mine"] and not request.done
    world.clock.now += pause
    world.exchange.send_due()
    assert world.sent(1) == ["mine", "mine"]
    world.bring(1, ("mine", 1, [6], EOS))
    assert request.generation.token_ids == [5, 6]


def test_abort_where_a_server_has_it():
    world = World()
    request = world.begin("a")
    world.exchange.abort(request)
    assert list(world.lines[0].said[-1].abort.request_ids) == ["a"] and not request.done
    world.bring(0, ("a", 0, [], ABORTED))
    assert request.done and request.error is None and request.generation.finish_reason == "aborted"
    world.exchange.abort(request)
    assert len(world.lines[0].said) == 2


def test_what_was_aborted_is_not_sent_again():
    world = World()
    request = world.begin("a")
    world.exchange.abort(request)
    world.exchange.ended(world.lines[0], gone())
    assert request.done and isinstance(request.error, Unavailable)


def test_abort_where_no_server_has_it():
    world = World(max_in_flight=1)
    first, second = world.begin("a"), world.begin("b")
    world.exchange.abort(second)
    assert isinstance(second.error, Cancelled) and world.exchange.num_open == 1
    world.exchange.ended(world.lines[0], gone())
    world.exchange.abort(first)
    assert isinstance(first.error, Cancelled) and world.exchange.num_open == 0
    assert world.exchange.send_due() is None and len(world.lines) == 1
    assert [request for request, _ in world.news()] == [second, first]
