"""Errors of calls."""

import gc
import types

import grpc
import pytest

from frontend.call.messages import LARGE_MESSAGE_BYTES
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import details_of, run_service
from tests.patience import until


def frames_with_a_large_request() -> list[str]:
    """Names of functions that hold a large request: running ones, and those in a circle of garbage."""
    # isinstance() would ask objects for their class, at which some of torch's warn.
    frames = [each for each in gc.get_objects() if type(each) is types.FrameType]
    return [frame.f_code.co_name for frame in frames if is_large(frame.f_locals.get("request"))]


def is_large(request: object) -> bool:
    match request:
        case bytes():
            return len(request) > LARGE_MESSAGE_BYTES
        case generation_pb2.GenerateRequest():
            return request.ByteSize() > LARGE_MESSAGE_BYTES
    return False


async def test_a_refused_request_does_not_wait_for_the_garbage_collector(checkpoint, model):
    sequences = [{"token_ids": [7] * LARGE_MESSAGE_BYTES}]
    request = generation_pb2.GenerateRequest(prompt={"text": "a"}, continuation={"sequences": sequences})
    async with run_service(checkpoint, model=model) as service:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await service.generation.GenerateUnary(request)
                assert details_of(caught.value)["ErrorInfo"].reason == "INVALID_FIELD"
            del request, caught
            # The call's task ends some time after its client knows.
            await until(lambda: not frames_with_a_large_request())
        finally:
            gc.enable()
