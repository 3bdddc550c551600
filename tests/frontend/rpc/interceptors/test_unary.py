"""Responses of unary methods that cannot be written."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from frontend.call.write_timeout import WriteTimeouts
from frontend.rpc.interceptors.unary import UnaryInterceptor


async def test_a_client_that_has_left_is_no_error():
    """gRPC logged a traceback for each: a client could fill the log."""

    async def method(request: object, context: object) -> bytes:
        return b"answer"

    async def write(_: object) -> None:
        raise grpc.aio.UsageError("the client has left")

    handler = grpc.unary_unary_rpc_method_handler(method)
    writing = UnaryInterceptor(WriteTimeouts(10.0))._writing(handler)
    with pytest.raises(asyncio.CancelledError):
        await writing.unary_stream(b"", SimpleNamespace(send_initial_metadata=write, write=write))
