"""Every request that names a model may name an adapter, whatever its protocol."""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor

from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import (
    generation_pb2,
    model_pb2,
    pooling_pb2,
    tokenizer_pb2,
)
from pagewire_gateways.protos import open_inference_pb2 as oip
from pagewire_openai.extension import SERVED
from tests.frontend.call.test_doors import Doors, doors_of, once, status
from tests.frontend.fakes import Output, details_of, encode, pool, say, until

NOT_FOUND = "no model of that name"
FIELDS = {"GetModel": "name", "ModelMetadata": "name"} | dict.fromkeys(
    ("ModelInfer", "ModelStreamInfer"), "model_name"
)
"""The field that has the name, where that is not `model`."""
TEXT = {"text": "a"}
MESSAGES = [{"role": "user", "content": "a"}]
Call = Callable[[Doors, str], Awaitable[str]]


def generate(name: str) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(model=name, request_id="a", prompt=TEXT)


def infer(name: str) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name=name)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(b"\x01\0\0\0a")
    return request


async def unary(call: Any) -> str:
    """Returns the answer to a call, or its error."""
    try:
        return str(await call)
    except Exception as error:
        return str(error)


CALLS: dict[str, Call] = {
    "Generate": lambda to, name: status(to.service.generation.Generate(generate(name))),
    "GenerateUnary": lambda to, name: unary(to.service.generation.GenerateUnary(generate(name))),
    "GenerateMultiplexed": lambda to, name: status(
        to.service.generation.GenerateMultiplexed(
            once(generation_pb2.GenerateMultiplexedRequest(generate=generate(name)))
        )
    ),
    "Embed": lambda to, name: unary(
        to.service.pooling.Embed(pooling_pb2.EmbedRequest(model=name, inputs=[TEXT]))
    ),
    "Classify": lambda to, name: unary(
        to.service.pooling.Classify(pooling_pb2.ClassifyRequest(model=name, inputs=[TEXT]))
    ),
    "Score": lambda to, name: unary(
        to.service.pooling.Score(pooling_pb2.ScoreRequest(model=name, query=TEXT, documents=[TEXT]))
    ),
    "ScoreContinuations": lambda to, name: unary(
        to.service.pooling.ScoreContinuations(
            pooling_pb2.ScoreContinuationsRequest(model=name, prompt=TEXT, continuations=["b"])
        )
    ),
    "Tokenize": lambda to, name: unary(
        to.service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(model=name, prompts=[TEXT]))
    ),
    "Detokenize": lambda to, name: unary(
        to.service.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(model=name, sequences=[{"ids": [5]}]))
    ),
    "GetTokenizer": lambda to, name: status(
        to.service.tokenizer.GetTokenizer(tokenizer_pb2.GetTokenizerRequest(model=name))
    ),
    "GetModel": lambda to, name: unary(to.service.models.GetModel(model_pb2.GetModelRequest(name=name))),
    "ModelMetadata": lambda to, name: unary(to.oip.ModelMetadata(oip.ModelMetadataRequest(name=name))),
    "ModelInfer": lambda to, name: unary(to.oip.ModelInfer(infer(name))),
    "ModelStreamInfer": lambda to, name: status(to.oip.ModelStreamInfer(once(infer(name)))),
    "/v1/chat/completions": lambda to, name: to.post("/v1/chat/completions", model=name, messages=MESSAGES),
    "/v1/completions": lambda to, name: to.post("/v1/completions", model=name, prompt="a"),
    "/v1/responses": lambda to, name: to.post("/v1/responses", model=name, input="a"),
    "/v1/messages": lambda to, name: to.post("/v1/messages", model=name, messages=MESSAGES, max_tokens=1),
    "/v1/messages/count_tokens": lambda to, name: to.post(
        "/v1/messages/count_tokens", model=name, messages=MESSAGES
    ),
    "/v1/embeddings": lambda to, name: to.post("/v1/embeddings", model=name, input="a"),
    "/pooling": lambda to, name: to.post("/pooling", model=name, input="a"),
    **{
        path: lambda to, name, path=path: to.post(path, model=name, query="a", documents=["b"])
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    },
    **{
        path: lambda to, name, path=path: to.post(path, model=name, text_1="a", text_2="b")
        for path in ("/v1/score", "/score")
    },
    "/classify": lambda to, name: to.post("/classify", model=name, input="a"),
    "/tokenize": lambda to, name: to.post("/tokenize", model=name, prompt="a"),
    "/detokenize": lambda to, name: to.post("/detokenize", model=name, tokens=[5]),
}
"""A call that names a model."""
ANSWER_NAMES = {
    *("Generate", "GenerateUnary", "GenerateMultiplexed", "GetModel", "ModelMetadata", "ModelInfer"),
    *("ModelStreamInfer", "/v1/chat/completions", "/v1/completions", "/v1/responses"),
    *("/v1/messages", "/v1/embeddings", "/pooling"),
}
"""Calls whose answers have the name."""


def answer(request: engine_pb2.AddRequest) -> Iterable[Output | Sequence[Output]]:
    return pool(request) if request.HasField("pooling") else say(encode("b"))(request)


async def test_each_takes_the_name_of_an_adapter(checkpoint: Path) -> None:
    async with doors_of(checkpoint, script=answer) as doors:
        legal = engine_pb2.NamedAdapter(name="legal", source="/legal", digest=bytes(32))
        await doors.service.engine.tell_adapters(engine_pb2.AdapterTable(adapters=[legal]))
        adapters = doors.service.frontend.parts.engine.adapters
        await until(lambda: bool(adapters._named))
        for name in ("fake", "legal", "nothing"):
            assert (await doors.oip.ModelReady(oip.ModelReadyRequest(name=name))).ready == (name != "nothing")
        for door, call in CALLS.items():
            assert f"{FIELDS.get(door, 'model')}: {NOT_FOUND}" in await call(doors, "nothing"), door
            for name in ("fake", "legal"):
                found = await call(doors, name)
                assert NOT_FOUND not in found, door
                assert (name in found) >= (door in ANSWER_NAMES), (door, found)


async def test_a_refusal_names_the_field_that_has_the_name(checkpoint: Path) -> None:
    """Before a request is sent, and by the core."""
    async with doors_of(checkpoint, script=None) as doors:
        engine, service = doors.service.engine, doors.service
        adapters = [
            engine_pb2.NamedAdapter(name="legal", source="/legal", digest=bytes(32)),
            engine_pb2.NamedAdapter(name="soft", source="/soft", digest=b"s" * 32, virtual_tokens=2),
        ]
        await engine.tell_adapters(engine_pb2.AdapterTable(adapters=adapters))
        await until(lambda: bool(service.frontend.parts.engine.adapters._named))
        for field in ("model", "adapter"):
            for call in (
                service.generation.GenerateUnary(
                    generation_pb2.GenerateRequest(prompt=TEXT, **{field: "nothing"})
                ),
                service.pooling.Embed(pooling_pb2.EmbedRequest(inputs=[TEXT], **{field: "nothing"})),
                service.pooling.Score(
                    pooling_pb2.ScoreRequest(query=TEXT, documents=[TEXT], **{field: "nothing"})
                ),
            ):
                assert f"{field}: no {field} of that name" in await unary(call)
            embedding = service.pooling.Embed(pooling_pb2.EmbedRequest(inputs=[TEXT], **{field: "soft"}))
            assert f"{field}: is an adapter of virtual tokens" in await unary(embedding)
            call = service.generation.GenerateUnary(
                generation_pb2.GenerateRequest(prompt=TEXT, **{field: "legal"})
            )
            sent = await engine.requests.get()
            await engine.fail(sent.handle, 9, "ADAPTER_CHANGED", "adapter is gone", field="adapter")
            with pytest.raises(grpc.aio.AioRpcError, match=f"{field} is gone") as caught:
                await call
            (violation,) = details_of(caught.value)["BadRequest"].field_violations
            assert (violation.field, violation.description) == (field, "is gone")


def test_none_is_missing() -> None:
    modules = (generation_pb2, model_pb2, pooling_pb2, tokenizer_pb2, oip)
    services: list[ServiceDescriptor] = [
        service for module in modules for service in module.DESCRIPTOR.services_by_name.values()
    ]
    rpcs = set()
    for method in (method for service in services for method in service.methods):
        fields = set(method.input_type.fields_by_name)
        nested = method.input_type.fields_by_name.get("generate")
        fields |= set(nested.message_type.fields_by_name) if nested is not None else set()
        if fields & {"model", "model_name"} or method.name in ("GetModel", "ModelMetadata"):
            rpcs.add(method.name)
    paths = {each.path for each, _ in SERVED if each.body is not None and '"model"' in json.dumps(each.body)}
    assert set(CALLS) == rpcs | paths
