"""Clients of a service: so many streams at once, each followed by another one, all of it written down."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from typing import Any

from pagewire import AsyncClient
from pagewire_client.errors import RpcError
from pagewire_client.results import Delta, Generation
from tests.chaos.cases import Case, choose_stop
from tests.chaos.history import OK, REFUSED, Writer

NUM_CLIENTS = 8
"""Each is a connection, and so on one frontend: the kernel deals them out."""
MAX_WHOLE_ATTEMPTS = 2
"""What is delivered as a whole begins anew on another frontend, or goes on as a stream, and is given up when
its connection has broken five times: what was sent more often than this has to end before the next strike."""
PATIENCE_S = 300.0
"""A stream that does not move on for so long is stuck, on the slowest machine."""
NOT_READY, UNREACHED = "ENGINE_NOT_READY", "failed to connect to all addresses"
"""A new request finds no engine, or all frontends dead: it is refused before it has begun."""
UNREACHED_PAUSE_S = 0.2

SUBMITTED_TWICE, UNNOTED = 5, -1
"""One stream in so many begins with a call that is left again, of which nothing is written down."""

_stream: ContextVar[int] = ContextVar("stream")


class Stuck(AssertionError):
    """Streams do not move on, or do not end."""


class _Watched(AsyncClient):
    """Says when a request leaves, the first time or again."""

    on_attempt: Callable[[int], None]

    def _streaming(self, *arguments: Any) -> Any:
        self._note()
        return super()._streaming(*arguments)

    async def _call(self, *arguments: Any) -> Any:
        self._note()
        return await super()._call(*arguments)

    def _note(self) -> None:
        number = _stream.get(None)
        if number is not None and number != UNNOTED:
            self.on_attempt(number)


def _pause_if_refused(error: RpcError) -> float | None:
    """Seconds after which to ask again, where no engine is there, which was said, or no frontend. None: it
    is an error."""
    if error.reason == NOT_READY:
        return error.retry_after
    return UNREACHED_PAUSE_S if error.message.startswith(UNREACHED) else None


class Load:
    """One asyncio process's worth of clients. All methods belong to the event loop."""

    def __init__(self, addresses: Sequence[str], writer: Writer, seed: int) -> None:
        """addresses: frontends of one service, in any order; one may stand there twice."""
        self._writer = writer
        self._dice = random.Random(seed)
        self._clients = [_Watched(addresses) for _ in range(NUM_CLIENTS)]
        for client in self._clients:
            client.on_attempt = self._note_attempt
        self._numbers = count()
        self._alive: set[int] = set()  # those that stream
        self._whole: Counter[int] = Counter()  # attempts of those that are delivered as a whole
        self._unheard: set[int] = set()  # those of them that have to move on
        self._tokens_to_come = 0
        self._moved = asyncio.Event()
        self._stopping = False

    async def close(self) -> None:
        """Disconnects."""
        for client in self._clients:
            await client.close()

    async def make_twins(self, cases: Sequence[Case]) -> list[Case]:
        """Runs each case once, all at the same time, and writes them down; nothing may be killed meanwhile,
        and nothing is drafted.
        Returns them with the stop strings that their own texts have."""
        drafts = [case for case in cases if case.needs_stop]
        texts = await asyncio.gather(*map(self._text_parts, drafts))
        stops = {case.number: choose_stop(parts) for case, parts in zip(drafts, texts, strict=True)}
        whole = [case.with_stop(stops[case.number]) if case.needs_stop else case for case in cases]
        for case in whole:
            what = {"name": case.kind, "streams": case.streams}
            self._writer.case(case.number, **what, prompt=case.prompt, params=repr(case.params))
        await asyncio.gather(*(self._run(case, twin=True) for case in whole))
        return whole

    async def run(self, cases: Sequence[Case]) -> None:
        """As many streams at once as there are cases, until stop(); then each ends in peace."""
        await asyncio.gather(*(self._slot(place, cases) for place in range(len(cases))))

    def stop(self) -> None:
        """No stream begins any more."""
        self._stopping = True

    async def moved_on(self, num_tokens: int) -> None:
        """Waits until each stream that is alive now has got something or has ended, and until so many tokens
        have come to all of them together; calls that were sent too often have to end. Raises Stuck."""
        tried = {stream for stream, attempts in self._whole.items() if attempts > MAX_WHOLE_ATTEMPTS}
        self._unheard = self._alive | tried
        self._tokens_to_come = num_tokens
        self._moved.clear()
        try:
            await asyncio.wait_for(self._moved.wait(), PATIENCE_S)
        except TimeoutError:
            raise Stuck(f"nothing comes to streams {sorted(self._unheard)}") from None

    async def _slot(self, place: int, cases: Sequence[Case]) -> None:
        case = cases[place]
        while not self._stopping:
            pause = await self._run(case)
            if pause is None:
                case = self._dice.choice(cases)
            else:
                await asyncio.sleep(pause)

    async def _text_parts(self, case: Case) -> list[str]:
        client = self._clients[case.number % NUM_CLIENTS]
        async with client.stream(**case.request) as stream:
            return [delta.text async for delta in stream if delta.index == 0]

    async def _run(self, case: Case, *, twin: bool = False) -> float | None:
        """Returns the seconds after which to ask again, where it was refused before anything of it began."""
        number = next(self._numbers)
        client = self._clients[number % NUM_CLIENTS]
        self._writer.send(number, case.number, twin=twin)
        result, status, reason, pause = Generation(), OK, "", None
        request = case.request | ({"max_draft_tokens": 0} if twin else {})
        if number % SUBMITTED_TWICE == 0 and case.streams and not twin:
            request["request_id"] = f"twice-{number}"
            await self._begin_and_leave(number, request)
        _stream.set(number)
        if case.streams:
            self._alive.add(number)
        else:
            self._whole[number] = 0
        try:
            if case.unary:
                result = await client.generate(**request)
                self._write_whole(number, result)
            else:
                async with client.stream(**request) as stream:
                    result = stream.generation
                    async for delta in stream:
                        self._writer.message(number, delta)
                        if case.streams:
                            self._heard(number, len(delta.token_ids))
        except RpcError as error:
            status, reason = error.code.name, error.reason or error.message
            pause = _pause_if_refused(error) if not result.outputs else None
            status = status if pause is None else REFUSED
        finally:
            self._alive.discard(number)
            self._whole.pop(number, None)
            self._heard(number, 0)
        self._writer.end(number, status, reason, result)
        return pause

    async def _begin_and_leave(self, number: int, request: dict[str, Any]) -> None:
        """Submits a request whose connection then seems to break: the next submit takes it over."""
        _stream.set(UNNOTED)
        with suppress(RpcError):  # of a kill
            async with self._clients[(number + 1) % NUM_CLIENTS].stream(**request) as stream:
                for _ in range(self._dice.randrange(4)):
                    await anext(stream, None)

    def _note_attempt(self, number: int) -> None:
        self._writer.attempt(number)
        if number in self._whole:
            self._whole[number] += 1

    def _write_whole(self, number: int, result: Generation) -> None:
        for output in result.outputs:
            delta = Delta(
                output.index,
                output.text,
                output.token_ids,
                0,
                output.finish_reason,
                output.stop,
                output.logprobs,
                tool_calls=output.tool_calls,
            )
            self._writer.message(number, delta)

    def _heard(self, number: int, num_tokens: int) -> None:
        self._unheard.discard(number)
        self._tokens_to_come -= num_tokens
        if not self._unheard and self._tokens_to_come <= 0:
            self._moved.set()
