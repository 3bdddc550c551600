"""Clients of all kinds: streams, whole answers, many over one stream, calls that break, connections that
come and go. Each answer is compared with the first one to the same request."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pagewire import AsyncClient
from pagewire_client.errors import RpcError

CASES = 24
_WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "home"]


class MixedLoad:
    """Clients of one service, until they are told to stop."""

    def __init__(self, address: str, seed: int) -> None:
        self.done: Counter[str] = Counter()
        """Requests that have ended, by kind."""
        self.refused: Counter[str] = Counter()
        """Errors, by reason: a kill may end calls for which nothing was delivered."""
        self.wrong = 0
        """Answers that differ from the first one to the same request."""
        self.stopping = False
        self._address = address
        self._dice = random.Random(seed)
        self._answers: dict[int, list[list[int]]] = {}
        self._number = 0
        self._shared = AsyncClient(address)

    async def run(self, num_clients: int) -> None:
        """So many clients at once."""
        kinds = (self._stream, self._whole, self._many, self._leaves, self._breaks, self._scores)
        try:
            await asyncio.gather(*(self._follow(kinds[place % len(kinds)]) for place in range(num_clients)))
        finally:
            await self._shared.close()

    async def _follow(self, kind: Callable[[], Awaitable[None]]) -> None:
        while not self.stopping:
            try:
                await kind()
                self.done[kind.__name__.strip("_")] += 1
            except RpcError as error:
                self.refused[error.reason or error.code.name] += 1
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        """Every other one has a connection of its own, and closes it."""
        if self._dice.random() < 0.5:
            yield self._shared
            return
        async with AsyncClient(self._address) as client:
            yield client

    def _case(self) -> tuple[int, str, dict[str, object]]:
        """A request of which there are CASES."""
        number = self._dice.randrange(CASES)
        dice = random.Random(number)
        prompt = " ".join(dice.choices(_WORDS, k=dice.randint(1, 80)))
        params = {"max_tokens": dice.choice([1, 16, 60, 120]), "ignore_eos": True, "seed": number}
        params |= {"temperature": dice.choice([0.0, 1.0]), "n": dice.choice([1, 1, 2])}
        if number % 5 == 0:
            params["logprobs"] = 2
        return number, prompt, params

    def _compare(self, number: int, tokens: list[list[int]]) -> None:
        self.wrong += self._answers.setdefault(number, tokens) != tokens

    async def _stream(self) -> None:
        number, prompt, params = self._case()
        async with self._client() as client, client.stream(prompt, **params) as stream:
            async for _ in stream:
                pass
        self._compare(number, [output.token_ids for output in stream.generation.outputs])

    async def _whole(self) -> None:
        number, prompt, params = self._case()
        async with self._client() as client:
            generation = await client.generate(prompt, **params)
        self._compare(number, [output.token_ids for output in generation.outputs])

    async def _many(self) -> None:
        """Eight requests over one stream."""
        async with self._client() as client, client.multiplex() as many:
            cases = {many.send(prompt, **params): number for number, prompt, params in self._cases(8)}
            async for request in many.results():
                if request.error is not None:
                    self.refused[request.error.reason or "no reason"] += 1
                else:
                    outputs = request.generation.outputs
                    self._compare(cases[request], [output.token_ids for output in outputs])

    def _cases(self, count: int) -> list[tuple[int, str, dict[str, object]]]:
        return [self._case() for _ in range(count)]

    async def _leaves(self) -> None:
        """A client that cancels, and does not come back."""
        _, prompt, params = self._case()
        async with self._client() as client, client.stream(prompt, **params) as stream:
            async for _ in stream:
                return

    async def _breaks(self) -> None:
        """A call is cancelled in the middle, and the same request is submitted again by another client."""
        number, prompt, params = self._case()
        self._number += 1
        params["request_id"] = f"soak-{self._number}"
        async with AsyncClient(self._address) as client, client.stream(prompt, **params) as stream:
            async for _ in stream:
                break
        generation = await self._shared.generate(prompt, **params)
        self._compare(number, [output.token_ids for output in generation.outputs])

    async def _scores(self) -> None:
        """Requests that generate nothing."""
        async with self._client() as client:
            await client.tokenize(" ".join(self._dice.choices(_WORDS, k=200)))
            await client.score_continuations("the quick", [" brown fox", " dog", " home"])
