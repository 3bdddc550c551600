"""Generate over real gRPC against a fake engine."""

from tests.frontend.fakes import encode, finishes_of, run_service, say, text_of
from pagewire.v1 import generation_pb2

async def test_smoke(checkpoint, model):
    async with run_service(checkpoint, say(encode("he"), encode("llo"), encode("!")), model=model) as s:
        messages = await s.generate(output={"timings": True})
        print(messages)
        assert text_of(messages) == "hello!"
        unary = await s.generation.GenerateUnary(generation_pb2.GenerateRequest(prompt={"text":"hi"}))
        print(unary)
