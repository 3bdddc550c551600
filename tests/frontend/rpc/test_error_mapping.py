"""Errors of calls."""

import asyncio
import gc
import types

import grpc
import pytest

from frontend.rpc.large_messages import LARGE_MESSAGE_BYTES
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import details_of, run_service


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
            names = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
            while any("GenerateUnary" in name for name in names):
                await asyncio.sleep(0)
                names = {task.get_name() for task in asyncio.all_tasks()}
            frames = [each for each in gc.get_objects() if isinstance(each, types.FrameType)]
            held = [
                frame.f_code.co_name
                for frame in frames
                if isinstance(frame.f_locals.get("request"), generation_pb2.GenerateRequest | bytes)
                and frame.f_code.co_filename != __file__
            ]
            assert not held
        finally:
            gc.enable()
