"""Calls are counted under go-grpc's names, whatever becomes of them."""

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from frontend.rpc.interceptors.metrics import MetricsInterceptor
from frontend.telemetry.counters import Counters
from pagewire.v1 import generation_pb2, generation_pb2_grpc

SERVICE = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
UNARY = ("unary", "pagewire.v1.GenerationService", "Abort")
STREAM = ("server_stream", "pagewire.v1.GenerationService", "Generate")


class Servicer(generation_pb2_grpc.GenerationServiceServicer):
    async def Abort(self, request: Any, context: Any) -> generation_pb2.AbortResponse:
        if request.request_ids:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")
        return generation_pb2.AbortResponse()

    async def Generate(self, request: Any, context: Any) -> None:
        await context.write(generation_pb2.GenerateResponse())
        raise ZeroDivisionError


async def test_each_call_is_counted_by_its_status():
    counters = Counters()
    server = grpc.aio.server(interceptors=[MetricsInterceptor([SERVICE], counters)])
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            await stub.Abort(generation_pb2.AbortRequest())
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Abort(generation_pb2.AbortRequest(request_ids=["x"]))
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in stub.Generate(generation_pb2.GenerateRequest()):
                    pass
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/pagewire.v1.GenerationService/Guess")(b"")
    finally:
        await server.stop(None)
    assert (counters.started[UNARY], counters.started[STREAM]) == (2, 1)
    assert counters.handled == {(*UNARY, "OK"): 1, (*UNARY, "NotFound"): 1, (*STREAM, "Unknown"): 1}
    assert counters.handling[UNARY].count == 2


async def test_a_method_that_does_not_exist_has_no_label():
    """Calls of random method names must not create metrics."""
    counters = Counters()
    details: Any = SimpleNamespace(method="/a.B/C", invocation_metadata=())
    handler = grpc.stream_stream_rpc_method_handler(lambda request, context: None)

    async def continuation(_: Any) -> Any:
        return handler

    assert await MetricsInterceptor([SERVICE], counters).intercept_service(continuation, details) is handler
    assert not counters.handled and "/a.B" not in str(counters.started)
