"""Requests whose grammar is being compiled: they wait by themselves, in whatever way they end."""

from collections.abc import Iterator

import pytest

from engine_core.intake.overload import QueueBounds
from engine_core.intake.preparation import MAX_KNOWN
from engine_core.io.inbox import FrontendGone
from pagewire.internal.v1.engine_pb2 import Abort, AddRequest
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import House


class SlowCompiler(House):
    """Its worker compiles a grammar when the test says so."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.asked: list[tuple[int, str]] = []
        self.worker.compile_grammar = lambda number, grammar: self.asked.append((number, grammar))  # type: ignore[method-assign]

    def compile(self) -> list[str]:
        """All that was asked for is compiled."""
        done, self.asked = self.asked, []
        self.worker.compiled += [number for number, _ in done]
        return [grammar for _, grammar in done]


def with_grammar(handle: int, grammar: str = "start: /a/", **options: object) -> AddRequest:
    message = add_request(handle, **options)  # type: ignore[arg-type]
    message.grammar = grammar
    return message


@pytest.fixture
def house() -> Iterator[SlowCompiler]:
    made = SlowCompiler(rows=4)
    yield made
    made.inbox.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_others_run_and_begin_meanwhile(ahead: bool) -> None:
    """A stream that runs does not miss a step, and requests that come later are not behind it."""
    house = SlowCompiler(rows=4, ahead=ahead)
    messages = [add_request(1, max_tokens=12), with_grammar(2, n=2), add_request(3, max_tokens=3)]
    house.put(messages[0])
    house.step()
    house.put(messages[1])
    house.put(messages[2])
    house.step(20)
    ledger = house.outputs_of(b"a")
    assert {*ledger.ends} == {(1, 0), (3, 0)} and (2, 0) not in ledger.tokens
    assert house.scheduler.idle_sleep > 0, "it does not spin while it waits for the compiler alone"
    assert house.compile() == ["start: /a/"]
    house.run()
    ledger = house.outputs_of(b"a")
    for message in messages:
        for index in range(message.sampling.n or 1):
            key = message.handle, index
            assert (ledger.tokens[key], ledger.ends[key]) == expected_output(message, index)
    house.inbox.close()


def test_a_grammar_is_compiled_once(house: SlowCompiler) -> None:
    """Also for requests that come while it is compiled; later ones begin at once."""
    for handle in (1, 2):
        house.put(with_grammar(handle))
    house.step(3)
    assert house.compile() == ["start: /a/"]
    house.run()
    house.put(with_grammar(3))
    house.run()
    assert not house.asked and {*house.outputs_of(b"a").ends} == {(1, 0), (2, 0), (3, 0)}


def test_old_grammars_are_asked_for_again(house: SlowCompiler) -> None:
    for place in range(MAX_KNOWN + 1):
        house.put(with_grammar(place + 1, f"start: /a{place}/", max_tokens=1))
        house.step()
        house.compile()
        house.run()
    house.put(with_grammar(100, f"start: /a{MAX_KNOWN}/", max_tokens=1))
    house.run()
    house.put(with_grammar(101, "start: /a0/", max_tokens=1))
    house.step(2)
    assert house.compile() == ["start: /a0/"]
    house.run()


def test_a_suspect_is_known_at_once(house: SlowCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quarantine decides when it runs: the worker compiles its grammar with its row."""
    monkeypatch.setattr(house.scheduler.quarantine, "is_to_be_isolated", lambda key: True)
    house.put(with_grammar(1))
    house.run()
    assert not house.asked and {*house.outputs_of(b"a").ends} == {(1, 0)}


def test_ends_while_it_is_compiled(house: SlowCompiler) -> None:
    """By the client, in part and in whole, by a time limit, with its frontend: nothing is left of it."""
    house.put(with_grammar(1))
    house.put(with_grammar(2, n=3))
    house.put(with_grammar(3), b"b")
    limited = with_grammar(4)
    limited.stopping.time_limit.FromSeconds(5)
    house.put(limited)
    house.step(2)
    assert len(house.scheduler.requests) == 4 and len(house.asked) == 1
    house.put(Abort(handle=1))
    house.put(Abort(handle=2, indexes=[0, 2]))
    house.inbox.put(FrontendGone(b"b"))
    house.now = 6.0
    house.step(2)
    (left,) = house.scheduler.requests
    assert left.handle == 2 and left.num_live == 1
    house.compile()
    house.run()
    ledger = house.outputs_of(b"a")
    message = with_grammar(2, n=3)
    assert (ledger.tokens[2, 1], ledger.ends[2, 1]) == expected_output(message, 1)
    assert not house.scheduler.states.preparing and not house.asked


def test_a_queue_is_full_of_them_too() -> None:
    """Requests that prepare count where the length of the queue is bounded. They are in no tenant's share
    of the queue yet, so up to twice the bound is admitted."""
    house = House(rows=1, bounds=QueueBounds(requests=2))
    house.worker.compile_grammar = lambda number, grammar: None  # type: ignore[method-assign]
    for handle in range(1, 9):
        house.put(with_grammar(handle))
    house.step()
    assert [failure.reason for failure in house.failures()] == ["QUEUE_FULL"] * 3
    house.inbox.close()
