"""Messages are merged in rounds while the loop lags, and leave at once where it keeps up."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from frontend.errors import InternalError
from frontend.streams import pacing
from frontend.streams.pacing import DeliveryPacer
from frontend.streams.sequence import OutputFields, Sequence
from frontend.streams.stream import DeliveryMode, Header, Stream
from frontend.telemetry.timings import RequestTimings
from tests.frontend.streams.test_stream import copy_of, push

LONGEST_S = 0.1
LAG_S = 0.008


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still but where a test moves it, and jumps to the next timer when idle."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


class Recorder:
    """A stream that costs the loop some time when it is released."""

    def __init__(self, loop: VirtualLoop, cost: float) -> None:
        self.loop, self.cost, self.released = loop, cost, list[float]()

    def release(self) -> None:
        self.released.append(self.loop.now)
        self.loop.call_soon(self.work)

    def work(self) -> None:
        self.loop.now += self.cost


def offer(pacer: DeliveryPacer, streams: list[Recorder]) -> int:
    """A step's output is due for all of them; returns how many wait."""
    num_held = 0
    for stream in streams:
        if pacer.holds(stream):
            num_held += 1
        else:
            stream.release()
    return num_held


async def steps(pacer: DeliveryPacer, streams: list[Recorder], count: int) -> list[int]:
    """A step each 20 ms; how many streams waited in each."""
    held = []
    for _ in range(count):
        have_waited = set(pacer._held)
        waiting = [stream for stream in streams if stream not in have_waited]
        held.append(offer(pacer, waiting))
        await asyncio.sleep(0.02)
    return held


def run(loop: VirtualLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return loop.run_until_complete(work)


@pytest.mark.parametrize(("number", "cost"), [(32, 50e-6), (100, 10e-6), (8, 0.01)])
def test_a_loop_that_keeps_up_holds_nothing_back(loop: VirtualLoop, number: int, cost: float):
    """Nor does one that a few streams hold up."""
    pacer, streams = DeliveryPacer(LONGEST_S), [Recorder(loop, cost) for _ in range(number)]
    assert run(loop, steps(pacer, streams, 20)) == [0] * 20 and not pacer.delay


def test_under_load_each_stream_gets_a_message_per_round(loop: VirtualLoop):
    pacer, streams = DeliveryPacer(LONGEST_S), [Recorder(loop, 25e-6) for _ in range(768)]
    run(loop, steps(pacer, streams, 100))
    assert pacer.delay == LONGEST_S, "eight times 19 ms is more"
    for stream in streams:
        rounds = stream.released[-10:]
        gaps = [after - before for before, after in zip(rounds, rounds[1:], strict=False)]
        assert all(0.099 < gap < 0.13 for gap in gaps), gaps


def test_the_delay_follows_the_lag(loop: VirtualLoop):
    pacer, streams = DeliveryPacer(LONGEST_S), [Recorder(loop, LAG_S / 100) for _ in range(100)]
    run(loop, steps(pacer, streams, 100))
    assert pacer.delay == pytest.approx(8 * LAG_S, rel=0.1)
    run(loop, steps(pacer, streams[:10], 100))
    assert not pacer.delay, "a few streams are no load"


def test_a_loop_that_was_idle_begins_anew(loop: VirtualLoop):
    pacer, streams = DeliveryPacer(LONGEST_S), [Recorder(loop, LAG_S / 100) for _ in range(100)]
    run(loop, steps(pacer, streams, 100))
    assert pacer.delay
    loop.now += 2.0
    assert run(loop, steps(pacer, streams[:1], 1)) == [0] and not pacer.delay


def test_zero_disables_it(loop: VirtualLoop):
    pacer, streams = DeliveryPacer(0.0), [Recorder(loop, 25e-6) for _ in range(768)]
    assert not any(run(loop, steps(pacer, streams, 30))) and not pacer.delay


# A stream that is paced.


def make(pacer: DeliveryPacer, n: int = 1, **delivery: Any) -> Stream:
    options = OutputFields(text=False, token_ids=True)
    sequences = [Sequence(index, options, None, None) for index in range(n)]
    return Stream(Header("id", "fake", 7, 3), DeliveryMode(**delivery), sequences, RequestTimings(), pacer)


@pytest.fixture
def lagging(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> DeliveryPacer:
    """The loop lags, for ever."""
    monkeypatch.setattr(pacing, "_STALE_S", 1e9)
    monkeypatch.setattr(pacing, "FEW_STREAMS", 1)
    monkeypatch.setattr(pacing, "_MEMORY", 0.0)
    pacer = DeliveryPacer(LONGEST_S)
    pacer.delay, pacer._lag = LONGEST_S, LONGEST_S
    return pacer


def test_what_comes_between_two_rounds_is_one_message(loop: VirtualLoop, lagging: DeliveryPacer):
    """The first message and the last one do not wait; no token is lost, repeated or moved."""

    async def scenario() -> list[tuple[int, list[int], float]]:
        stream, taken = make(lagging), []

        async def read() -> None:
            while (message := await stream.take()) is not None:
                (output,) = copy_of(message).sequences
                taken.append((output.position, list(output.token_ids), loop.now))

        reading, begin = asyncio.ensure_future(read()), loop.now
        for position in range(24):
            push(stream, position, [position], reason=1 if position == 23 else 0)
            await asyncio.sleep(0.02)
        await reading
        return [(position, tokens, when - begin) for position, tokens, when in taken]

    messages = run(loop, scenario())
    assert [token for _, tokens, _ in messages for token in tokens] == list(range(24))
    assert all(position == tokens[0] for position, tokens, _ in messages)
    assert messages[0] == (0, [0], 0.0), "the first message leaves at once"
    assert messages[-1][2] == pytest.approx(23 * 0.02), "and so does the last"
    sizes = [len(tokens) for _, tokens, _ in messages[2:-1]]
    assert min(sizes) >= 5 and max(sizes) <= 6


def test_what_a_round_releases_is_not_held_again(loop: VirtualLoop, lagging: DeliveryPacer):
    """Its handler may still write the message before: new output does not hold back what has waited."""

    async def scenario() -> None:
        stream = make(lagging)
        push(stream, 0, [0])
        await stream.take()
        push(stream, 1, [1])
        waiting = asyncio.ensure_future(stream.take())
        await asyncio.sleep(0.0)
        assert not waiting.done(), "a handler that asks meanwhile waits for the round"
        waiting.cancel()
        await asyncio.sleep(LONGEST_S)
        push(stream, 2, [2])
        assert list((await asyncio.wait_for(stream.take(), 0.001)).sequences[0].token_ids) == [1, 2]

    run(loop, scenario())


def test_ends_and_errors_do_not_wait(loop: VirtualLoop, lagging: DeliveryPacer):
    async def scenario() -> None:
        stream = make(lagging, n=2)
        push(stream, 0, [5])
        await stream.take()
        push(stream, 1, [6])
        push(stream, 0, [7], reason=1, index=1)
        message = await asyncio.wait_for(stream.take(), 0.001)
        assert {each.index: list(each.token_ids) for each in message.sequences} == {0: [6], 1: [7]}
        push(stream, 2, [8])
        stream.fail(InternalError())
        assert list((await asyncio.wait_for(stream.take(), 0.001)).sequences[0].token_ids) == [8]
        with pytest.raises(InternalError):
            await stream.take()

    run(loop, scenario())


def test_a_minimum_of_tokens_holds_beside_it(loop: VirtualLoop, lagging: DeliveryPacer):
    async def scenario() -> None:
        stream = make(lagging, interval=4)
        push(stream, 0, [0])
        await stream.take()
        reading = asyncio.ensure_future(stream.take())
        for position in (1, 2, 3):
            push(stream, position, [position])
        await asyncio.sleep(3 * LONGEST_S)
        assert not reading.done() and not lagging._held
        push(stream, 4, [4])
        assert list((await reading).sequences[0].token_ids) == [1, 2, 3, 4]

    run(loop, scenario())
