"""A request served end to end as an HTTP endpoint would serve it: no object here comes from gRPC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from frontend.auth.authenticator import TokenAuthenticator
from frontend.auth.caller import Caller
from frontend.auth.tokens import TokenEntry, TokenTable, digest_of
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.call.serving_state import ServingState
from frontend.call.write_timeout import WriteTimeouts
from frontend.engine.client import EngineClient
from frontend.engine.core_list import GivenAddresses
from frontend.engine.socket import EngineSocket
from frontend.errors import ServiceError
from frontend.model.info import ModelInfo
from frontend.prompts.process_pool import PromptProcesses
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from pagewire.config import FrontendConfig
from pagewire.telemetry.tracing import read_trace_context
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import FakeEngine, encode, engine_address, make_request, say, text_of
from tests.patience import soon

METHOD = "/pagewire.v1.GenerationService/Generate"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALICE = {"authorization": "Bearer alice's", "traceparent": TRACE}


class Endpoint:
    """What an HTTP server would have: headers in, a status and a body out."""

    def __init__(self, model: ModelInfo, engine: EngineClient, max_calls: int, timeout: float) -> None:
        config = FrontendConfig()
        entries = [TokenEntry(digest_of("alice's"), Caller("alice"))]
        self.authenticator = TokenAuthenticator(SimpleNamespace(table=TokenTable(entries)))
        self.limits, self.timeouts = ConcurrencyLimits(max_calls, 0), WriteTimeouts(timeout)
        prompts = PromptReader(model.tokenizer, model.chat_template, 1, PromptProcesses(config))
        self.generator = Generator(config, model, prompts, engine, self.limits)

    async def serve(
        self, headers: dict[str, str], request: generation_pb2.GenerateRequest, send: Any
    ) -> tuple[int, float | None]:
        """Returns the status and Retry-After."""
        try:
            caller = self.authenticator.authenticate(METHOD, headers.items())
            assert caller is not None
            trace = read_trace_context(headers.items())
            with self.limits.call(caller), self.timeouts.writer(send) as writer:
                async with self.generator.open(request, Call(caller, 30.0, "http", trace)) as stream:
                    while (message := await stream.take()) is not None:
                        await writer.write(message)
        except ServiceError as error:
            return error.http_status, error.retry_after
        return 200, None


class Body:
    """Collects messages; the next one waits while `room` is not set."""

    def __init__(self) -> None:
        self.messages: list[generation_pb2.GenerateResponse] = []
        self.room = asyncio.Event()
        self.room.set()

    async def send(self, message: generation_pb2.GenerateResponse) -> None:
        await self.room.wait()
        copy = generation_pb2.GenerateResponse()
        copy.CopyFrom(message)
        self.messages.append(copy)


@asynccontextmanager
async def endpoint(
    model: ModelInfo, max_calls: int = 0, timeout: float = 0.0, script: Any = None
) -> AsyncIterator[tuple[Endpoint, FakeEngine]]:
    with engine_address() as address:
        core, state = FakeEngine(address, script=script), ServingState()
        client = EngineClient(GivenAddresses([address]), state, 10.0, EngineSocket)
        await core.start()
        client.start()
        served = Endpoint(model, client, max_calls, timeout)
        served.timeouts.start()
        try:
            while not state.serves:
                await state.changed()
            yield served, core
        finally:
            await served.timeouts.stop()
            await client.close()
            await core.close()


async def test_a_request_is_served(model):
    async with endpoint(model, script=say(encode("he"), encode("llo"))) as (served, core):
        body = Body()
        assert await served.serve(ALICE, make_request(), body.send) == (200, None)
        assert text_of(body.messages) == "hello"
        sent = await soon(core.requests.get())
        assert sent.tenant == "alice" and sent.traceparent == TRACE and sent.HasField("deadline")
        assert not served.limits.num_calls and not served.generator.registry


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({}, {}, 401),
        ({"authorization": "Bearer guessed"}, {}, 401),
        (ALICE, {"tenant": "bob"}, 403),
        (ALICE, {"model": "none"}, 404),
        (ALICE, {"stopping": {"max_tokens": 2**31}}, 400),
    ],
)
async def test_an_error_has_an_http_status(model, headers, fields, status):
    async with endpoint(model) as (served, _):
        assert (await served.serve(headers, make_request(**fields), None))[0] == status


async def test_limits_and_write_timeouts_hold(model):
    async with endpoint(model, max_calls=1, timeout=0.2, script=say(encode("hi"))) as (served, _):
        body = Body()
        body.room.clear()
        slow = asyncio.create_task(served.serve(ALICE, make_request(), body.send))
        while not served.limits.num_calls:
            await asyncio.sleep(0)
        status, retry_after = await served.serve(ALICE, make_request(), body.send)
        assert status == 429 and retry_after is not None
        assert await slow == (409, None), "a client that does not read is ended"
        body.room.set()
        assert (await served.serve(ALICE, make_request(), body.send))[0] == 200
