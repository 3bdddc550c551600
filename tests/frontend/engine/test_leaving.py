"""A core that leaves: its requests go on at another one, which is told where their blocks are."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from frontend.call.serving_state import SERVING, ServingState
from frontend.engine.client import EngineClient
from frontend.engine.core import Routing
from frontend.engine.core_list import GivenAddresses
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.v1 import inspection_pb2
from tests.frontend.engine.test_client import FakeSink, connected, next_of, reaches, submit
from tests.frontend.fakes import FakeEngine, Output, engine_address
from tests.patience import soon

Two = tuple[EngineClient, list[FakeEngine], list[str]]
LEAVING = engine_pb2.EngineMessage(leaving=engine_pb2.Leaving())


class Stream(FakeSink):
    """Has got two tokens."""

    missing_prompt_logprobs = None

    def delivered(self) -> Iterator[tuple[int, "array[int]", bool]]:
        yield 0, array("I", [7, 8]), False


@asynccontextmanager
async def two(share_prefixes: bool = False, **facts: tuple[Any, Any]) -> AsyncIterator[Two]:
    """Two engines, and a client of both. facts: attributes of the first and of the second one."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(engine_address()) for _ in range(2)]
        engines = [FakeEngine(address) for address in addresses]
        state = ServingState()
        client = EngineClient(
            GivenAddresses(addresses), state, resume_timeout=60.0, share_prefixes=share_prefixes
        )
        for place, engine in enumerate(engines):
            for name, values in facts.items():
                setattr(engine, name, values[place])
            await engine.start()
        client.start()
        try:
            await reaches(state, SERVING)
            while not all(core.serves for core in client.cores):
                await asyncio.sleep(0)
            yield client, engines, addresses
        finally:
            await client.close()
            for engine in engines:
                await engine.close()


async def test_requests_go_on_at_another_core() -> None:
    async with two() as (client, engines, addresses):
        first = engine_pb2.AddRequest(request_id="x", sampling={"n": 1})
        client.submit(first, Stream(), Routing(rank=0))
        there = await next_of(engines[0].requests)
        await engines[0].send(LEAVING)
        moved = await next_of(engines[1].requests)
        assert (moved.holder, moved.again, there.holder) == (addresses[0], True, "")
        assert unpack_u32(moved.delivered[0].token_ids) == [7, 8]
        assert (await next_of(engines[0].aborts)).handle == there.handle
        client.submit(engine_pb2.AddRequest(request_id="y"), Stream(), Routing(rank=0))
        assert (await next_of(engines[1].requests)).holder == ""  # a new one knows no holder


async def test_requests_stay_where_there_is_no_other_core() -> None:
    async with connected() as (client, engine, state):
        await submit(client, engine, Stream())
        await engine.send(LEAVING)
        await soon(state.changed())
        assert not state.serves and engine.aborts.empty() and client.journal.in_flight()


@pytest.mark.parametrize("namespaces", [(b"n", b"n"), (b"n", b"m"), (b"", b"")])
async def test_a_new_request_names_the_core_that_was_sent_its_prefix(namespaces: tuple[bytes, bytes]) -> None:
    """Where both cores have said that they may copy blocks of one another."""
    async with two(share_prefixes=True, transfer_namespace=namespaces) as (client, engines, addresses):
        prompt = pack_u32(range(100))
        for rank in (0, 0, 1):
            request = engine_pb2.AddRequest(request_id="x", prompt_token_ids=prompt)
            client.submit(request, Stream(), Routing(rank=rank))
        first, same, other = [await next_of(engines[rank].requests) for rank in (0, 0, 1)]
        assert first.holder == same.holder == ""
        assert other.holder == (addresses[0] if namespaces == (b"n", b"n") else "")


ROLES = engine_pb2.CORE_ROLE_PREFILL, engine_pb2.CORE_ROLE_DECODE


async def test_a_request_goes_to_a_core_that_decodes_with_its_first_token() -> None:
    async with two(role=ROLES, transfer_namespace=(b"n", b"n")) as (client, engines, addresses):
        client.submit(engine_pb2.AddRequest(request_id="x", sampling={"n": 1}), Stream(ends=9))
        there = await next_of(engines[0].requests)
        await engines[0].output(there.handle, Output([7, 8]))
        moved = await next_of(engines[1].requests)
        assert (moved.holder, moved.again) == (addresses[0], True)
        assert unpack_u32(moved.delivered[0].token_ids) == [7, 8]
        assert (await next_of(engines[0].aborts)).handle == there.handle
        assert (client.journal.num_handed_over, client.journal.num_resent) == (1, 0)
        assert client.events.latest()[0].kind == inspection_pb2.ENGINE_EVENT_KIND_SERVES
        await engines[1].stop()  # it goes on where there is a core, and stays there
        again = await next_of(engines[0].requests)
        assert again.holder == "" and again.delivered
        await engines[0].output(again.handle, Output([9], position=2))
        assert engines[0].aborts.empty() and len(client.journal.in_flight()) == 1


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({"transfer_namespace": (b"n", b"m")}, {}),
        ({"transfer_namespace": (b"n", b"n")}, {"cache_bypass": True}),
    ],
)
async def test_a_request_that_cannot_be_copied_stays(facts: dict[str, Any], fields: dict[str, Any]) -> None:
    async with two(role=ROLES, **facts) as (client, engines, _):
        sink = Stream(ends=9)
        client.submit(engine_pb2.AddRequest(request_id="x", sampling={"n": 1}, **fields), sink)
        there = await next_of(engines[0].requests)
        await engines[0].output(there.handle, Output([7, 8]))
        while not sink.outputs:
            await asyncio.sleep(0)
        assert engines[0].aborts.empty() and engines[1].requests.empty()


async def test_a_core_that_decodes_computes_prompts_where_no_other_does() -> None:
    async with two(role=ROLES[::-1], transfer_namespace=(b"n", b"n")) as (client, engines, _):
        await engines[1].stop()
        while client.cores[1].serves:
            await asyncio.sleep(0)
        sink = Stream(ends=9)
        client.submit(engine_pb2.AddRequest(request_id="x", sampling={"n": 1}), sink)
        there = await next_of(engines[0].requests)
        await engines[0].output(there.handle, Output([7, 8]))
        while not sink.outputs:
            await asyncio.sleep(0)
        assert engines[0].aborts.empty()
