"""Clients that do not read cost little, and are ended; those that pause lose nothing; those that leave leave
nothing behind."""

import asyncio
import contextlib
import os
from array import array

import grpc

from pagewire.v1 import generation_pb2
from tests.frontend.fakes import Output, make_request, run_service, say, tokens_of, until
from tests.patience import soon
from tests.stalled import StalledClient

TOKENS = list(range(65, 90))
PER_CONNECTION = 50


def messages_in(data: bytes) -> list[generation_pb2.GenerateResponse]:
    """gRPC's frames: a flag, four bytes of length, the message."""
    found = []
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append(generation_pb2.GenerateResponse.FromString(data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def wanted() -> generation_pb2.GenerateRequest:
    return make_request(output={"token_ids": True})


async def test_a_reader_that_stalls_is_told_so(checkpoint, model):
    """Behind everything that was on its way: one message, as it has taken none; the rest is dropped."""
    async with run_service(checkpoint, model=model, write_timeout=0.2) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            stream = client.call(wanted())
            handle = (await soon(service.engine.requests.get())).handle
            await service.engine.output(handle, Output(TOKENS[:1]))
            abort = await soon(service.engine.aborts.get())
            assert abort.handle == handle, "the core generates for it no longer"
            assert service.frontend.limits.num_calls == 1, "it counts until it has its status"
            data, trailers = await asyncio.to_thread(client.read_on, stream)
            assert tokens_of(messages_in(data)) == TOKENS[:1]
            assert trailers["grpc-status"] == str(grpc.StatusCode.ABORTED.value[0])
            await until(lambda: service.frontend.limits.num_calls == 0)


async def test_a_reader_that_pauses_gets_everything(checkpoint, model):
    """Whatever came meanwhile is one message."""
    async with run_service(checkpoint, say(*([token] for token in TOKENS)), model=model) as service:
        with StalledClient(f"127.0.0.1:{service.port}") as client:
            stream = client.call(wanted())
            await soon(service.engine.requests.get())
            await until(lambda: len(service.frontend.engine.journal) == 0)
            data, trailers = await asyncio.to_thread(client.read_on, stream)
            messages = messages_in(data)
            assert tokens_of(messages) == TOKENS and trailers["grpc-status"] == "0"
            assert len(messages) < len(TOKENS)


async def test_many_that_never_read(checkpoint, model):
    """Their generation ends, a reader beside them is served, and of each stream there are its ids."""
    async with run_service(checkpoint, say(*([token] for token in TOKENS)), model=model) as service:
        frontend, num = service.frontend, 4 * PER_CONNECTION
        tasks = len(asyncio.all_tasks())
        with contextlib.ExitStack() as stack:
            address = f"127.0.0.1:{service.port}"
            clients = [stack.enter_context(StalledClient(address)) for _ in range(num // PER_CONNECTION)]
            for client in clients:
                for _ in range(PER_CONNECTION):
                    client.call(wanted())
                await asyncio.sleep(0)
            await until(lambda: len(frontend.write_timeouts) == num and len(frontend.engine.journal) == 0)
            await until(lambda: all(writer.since is not None for writer in frontend.write_timeouts))
            reader = service.generation.Generate(wanted())
            assert tokens_of([message async for message in reader]) == TOKENS
        await until(lambda: frontend.limits.num_calls == 0 and len(frontend.write_timeouts) == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_cancels_leave_nothing(checkpoint, model):
    """Neither entries nor tasks nor descriptors: on their way, waiting, and after the first token."""
    async with run_service(checkpoint, lambda _: [Output(array("I", [65]))], model=model) as service:
        frontend, engine = service.frontend, service.engine
        await _cancel(service, 10)
        await until(lambda: not frontend.limits.num_calls)
        tasks, descriptors = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await _cancel(service, 50)
            await until(lambda: not frontend.limits.num_calls)
        assert len(frontend.engine.journal) == 0 and not frontend.limits.num_bytes
        assert not frontend.parts.generator.registry and not len(frontend.write_timeouts)
        await until(lambda: not engine._in_flight)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


async def _cancel(service, number: int) -> None:
    """So many calls, cancelled in one state or another."""

    async def one(place: int) -> None:
        call = service.generation.Generate(wanted())
        if place % 3 == 1:
            await asyncio.sleep(0.001 * (place % 7))
        elif place % 3 == 2:
            await call.read()
        call.cancel()

    await asyncio.gather(*(one(place) for place in range(number)))
