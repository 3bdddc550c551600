"""Requests that are one to their client, under one id: embeddings of several inputs, scores of continuations.

One call stands for many requests, each of which costs the event loop as much as any other. A tenant's calls
share their turns: as many as its quotas allow, since more would only be refused, and few while other tenants
have calls here, whose messages would have to wait for all that begin together.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

from frontend.auth.caller import Caller, Terms
from frontend.call.call import Call
from frontend.call.turns import TenantTurns
from frontend.streams.generator import Generator
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream
from frontend.telemetry.tracing import put_log_fields
from frontend.validation.rules import MAX_COUNT
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2

BESIDE_OTHERS = 4
"""Requests of a tenant's groups that run at once while other tenants have calls at this frontend."""

T = TypeVar("T")
GroupRequest = pooling_pb2.EmbedRequest | pooling_pb2.ScoreContinuationsRequest


class GroupTurns:
    """Belongs to the event loop's thread. Without authentication tenants are not told apart, and all begin
    at once."""

    def __init__(self, serves_others: Callable[[Caller], bool]) -> None:
        """serves_others: whether tenants other than the caller's have calls now."""
        self._serves_others = serves_others
        self._callers: dict[str, Caller] = {}  # the last one of each tenant that has turns
        self._turns = TenantTurns(None, self._share)

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Waits for a turn, in order of arrival, and holds it within the block."""
        if caller.tenant is None:
            yield
            return
        self._callers[caller.tenant] = caller
        await self._turns.begin(caller.tenant)
        try:
            yield
        finally:
            self._turns.end(caller.tenant)
            if not self._turns.num_running(caller.tenant):
                del self._callers[caller.tenant]

    def _share(self, tenant: str) -> int:
        """Returns how many requests of one sequence the tenant may have at once."""
        caller = self._callers[tenant]
        terms = caller.terms or Terms()
        most = min(quota or MAX_COUNT for quota in (terms.max_requests, terms.max_sequences))
        return min(most, BESIDE_OTHERS) if self._serves_others(caller) else most


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One call, and the ids of its requests.

    ends: when its deadline passes, on the loop's clock; None: it has none.
    """

    whole: GroupRequest
    call: Call
    ends: float | None
    request_ids: tuple[str, ...]

    def request(
        self, index: int, token_ids: Items[int], output: generation_pb2.OutputOptions
    ) -> generation_pb2.GenerateRequest:
        """Returns a request that computes the tokens of a prompt."""
        return generation_pb2.GenerateRequest(
            request_id=self.request_ids[index],
            prompt=prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=token_ids)),
            sampling=generation_pb2.SamplingParams(temperature=0),
            stopping=generation_pb2.StoppingCriteria(max_tokens=0),
            output=output,
            priority=self.whole.priority,
            tenant=self.whole.tenant,
            cache=self.whole.cache,
        )


class RequestGroups:
    """Runs the requests of groups. Belongs to the event loop's thread."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._turns = GroupTurns(generator.limits.serves_others)

    @contextmanager
    def open(self, whole: GroupRequest, call: Call, size: int) -> Iterator[RequestGroup]:
        """Reserves the ids of a group of a validated request within the block. Raises TenantMismatch,
        TermsExceeded, RequestExists."""
        tenant = call.caller.act_as(whole.tenant)
        call.caller.check_terms(whole.priority)
        ends = None if call.time_left is None else asyncio.get_running_loop().time() + call.time_left
        request_id = whole.request_id or secrets.token_hex(16)
        put_log_fields(request_id, tenant, call.trace)
        with self._generator.registry.group(request_id, call.caller, size) as members:
            yield RequestGroup(whole, call, ends, members)

    async def run(
        self,
        group: RequestGroup,
        make: Callable[[int], generation_pb2.GenerateRequest],
        mode: CallMode,
        read: Callable[[Stream, generation_pb2.GenerateResponse | None], T],
        slots: asyncio.Semaphore | None = None,
    ) -> list[T]:
        """Runs all requests of a group, and returns their results in order. The first failure ends all.

        make: returns a request by its index when its turn has come: each has a copy of its prompt. read:
        returns the result from the one message. slots: of requests at once, over all tenants.
        """

        async def run_one(index: int) -> T:
            async with slots or nullcontext(), self._turns.turn(group.call.caller):
                left = None
                if group.ends is not None:
                    left = max(group.ends - asyncio.get_running_loop().time(), 0.0)
                call = replace(group.call, time_left=left)
                async with self._generator.open(make(index), call, mode) as stream:
                    return read(stream, await stream.take())

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(run_one(index)) for index in range(len(group.request_ids))]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in running]
