"""What the interceptors find out about a call reaches its own method, and no other."""

import asyncio
from types import SimpleNamespace

import pytest

from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.errors import Unauthenticated
from frontend.rpc.call_context import (
    current_call,
    current_caller,
    reauthenticated_call,
    set_caller,
    set_trace,
)
from pagewire.telemetry.tracing import TraceContext

ALICE, BOB = Caller("alice"), Caller("bob")
CONTEXT = SimpleNamespace(time_remaining=lambda: 2.5)


async def test_a_caller_belongs_to_one_task_and_must_be_set():
    with pytest.raises(LookupError):
        current_caller()

    async def call(caller: Caller) -> Caller:
        set_caller(caller)
        await asyncio.sleep(0)
        return current_caller()

    assert await asyncio.gather(call(ALICE), call(BOB)) == [ALICE, BOB]
    with pytest.raises(LookupError):
        current_call(CONTEXT)


async def test_a_call_has_caller_deadline_method_and_trace():
    async def serve() -> Call:
        set_caller(ALICE)
        set_trace("a.B/C", TraceContext("parent"))
        return current_call(CONTEXT)

    assert await asyncio.create_task(serve()) == Call(ALICE, 2.5, "a.B/C", TraceContext("parent"))


async def test_a_token_is_checked_again_for_each_request_of_a_long_call():
    answers = [BOB, None]

    def authenticate() -> Caller | None:
        if not answers:
            raise Unauthenticated("TOKEN_INVALID", "revoked")
        return answers.pop(0)

    async def serve() -> None:
        set_caller(ALICE, authenticate)
        assert reauthenticated_call(CONTEXT).caller == BOB
        assert reauthenticated_call(CONTEXT).caller == ALICE, "a public method keeps its caller"
        with pytest.raises(Unauthenticated):
            reauthenticated_call(CONTEXT)

    await asyncio.create_task(serve())
