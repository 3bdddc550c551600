"""Every call that has a prompt reads it in its tenant's turn, whatever its protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc

from frontend.rpc.interceptors.admission import _CALLS, _STREAMS
from pagewire.v1 import generation_pb2, pooling_pb2, tokenizer_pb2
from pagewire_gateways.protos import open_inference_pb2 as oip
from pagewire_gateways.protos import open_inference_pb2_grpc, tei_pb2, tei_pb2_grpc
from pagewire_openai.extension import SERVED
from tests.frontend.fakes import Service, run_service
from tests.patience import PATIENCE_S

TEXT = "x" * (40 << 10)
"""More than is read as it comes, less than is decoded in turns."""
IDS = [1 << 20] * (20 << 10)
"""Of no vocabulary, in as many bytes."""
Door = Callable[["Doors"], Awaitable[str]]


class Doors:
    """A service with all doors, and clients for them."""

    def __init__(self, service: Service, http: httpx2.AsyncClient) -> None:
        self.service, self._http = service, http
        self.oip = open_inference_pb2_grpc.GRPCInferenceServiceStub(service.channel)
        self.vllm = vllm_engine_pb2_grpc.VllmEngineStub(service.channel)
        self.tei = tei_pb2_grpc.EmbedStub(service.channel)
        self.tei_predict = tei_pb2_grpc.PredictStub(service.channel)
        self.tei_rerank = tei_pb2_grpc.RerankStub(service.channel)
        self.tei_tokenize = tei_pb2_grpc.TokenizeStub(service.channel)

    async def post(self, path: str, **body: Any) -> str:
        """Returns an HTTP error."""
        return (await self._http.post(path, json=body)).text


async def status(call: Any) -> str:
    """Returns the error that ends a call, or that its first message has."""
    try:
        async for message in call:
            return str(message)
        return ""
    except TypeError:
        pass
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return str(caught.value.details())


def wrong(**fields: Any) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(prompt={"text": TEXT}, sampling={"temperature": -1}, **fields)


def tensors() -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name="fake")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.inputs.add(name="temperature", datatype="BYTES", shape=[1])
    request.raw_input_contents.extend([len(TEXT).to_bytes(4, "little") + TEXT.encode(), b"\x01\0\0\0x"])
    return request


async def once(message: Any) -> AsyncIterator[Any]:
    yield message


MESSAGES = [{"role": "user", "content": TEXT}]
SIDE: dict[str, Any] = {"truncation_direction": 7}
EMBED = pooling_pb2.EmbedRequest(inputs=[{"token_ids": {"ids": IDS}}])
MULTIPLEXED = generation_pb2.GenerateMultiplexedRequest(generate=wrong(request_id="a"))
VLLM: dict[str, Any] = {"text": TEXT, "sampling_params": {"truncate_prompt_tokens": -2}}

DOORS: dict[str, tuple[Door, str]] = {
    "Generate": (lambda to: status(to.service.generation.Generate(wrong())), "sampling.temperature"),
    "GenerateUnary": (
        lambda to: status(to.service.generation.GenerateUnary(wrong())),
        "sampling.temperature",
    ),
    "GenerateMultiplexed": (
        lambda to: status(to.service.generation.GenerateMultiplexed(once(MULTIPLEXED))),
        "sampling.temperature",
    ),
    "Embed": (lambda to: status(to.service.pooling.Embed(EMBED)), "inputs[0]"),
    "Classify": (
        lambda to: status(to.service.pooling.Classify(pooling_pb2.ClassifyRequest(inputs=EMBED.inputs))),
        "model",
    ),
    "Score": (
        lambda to: status(to.service.pooling.Score(pooling_pb2.ScoreRequest(query=EMBED.inputs[0]))),
        "documents",
    ),
    "ScoreContinuations": (
        lambda to: status(
            to.service.pooling.ScoreContinuations(
                pooling_pb2.ScoreContinuationsRequest(prompt={"token_ids": {"ids": IDS}}, continuations=["x"])
            )
        ),
        "prompt",
    ),
    "Tokenize": (
        lambda to: status(to.service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompts=EMBED.inputs))),
        "prompts[0]",
    ),
    "Detokenize": (
        lambda to: status(
            to.service.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(sequences=[{"ids": IDS}]))
        ),
        "sequences[0]",
    ),
    "vllm.grpc.engine.VllmEngine/Generate": (
        lambda to: status(to.vllm.Generate(vllm_engine_pb2.GenerateRequest(**VLLM))),
        "truncate_prompt_tokens",
    ),
    "vllm.grpc.engine.VllmEngine/Embed": (
        lambda to: status(to.vllm.Embed(vllm_engine_pb2.EmbedRequest(tokenized={"input_ids": IDS}))),
        "input_ids",
    ),
    "tei.v1.Embed/Embed": (
        lambda to: status(to.tei.Embed(tei_pb2.EmbedRequest(inputs=TEXT, dimensions=0))),
        "dimensions",
    ),
    "tei.v1.Embed/EmbedStream": (
        lambda to: status(to.tei.EmbedStream(once(tei_pb2.EmbedRequest(inputs=TEXT, dimensions=0)))),
        "dimensions",
    ),
    "tei.v1.Embed/EmbedAll": (
        lambda to: status(to.tei.EmbedAll(tei_pb2.EmbedAllRequest(inputs=TEXT, **SIDE))),
        "truncation_direction",
    ),
    "tei.v1.Embed/EmbedAllStream": (
        lambda to: status(to.tei.EmbedAllStream(once(tei_pb2.EmbedAllRequest(inputs=TEXT, **SIDE)))),
        "truncation_direction",
    ),
    "tei.v1.Embed/EmbedSparse": (
        lambda to: status(to.tei.EmbedSparse(tei_pb2.EmbedSparseRequest(inputs=TEXT, **SIDE))),
        "truncation_direction",
    ),
    "tei.v1.Embed/EmbedSparseStream": (
        lambda to: status(to.tei.EmbedSparseStream(once(tei_pb2.EmbedSparseRequest(inputs=TEXT, **SIDE)))),
        "truncation_direction",
    ),
    "tei.v1.Predict/Predict": (
        lambda to: status(to.tei_predict.Predict(tei_pb2.PredictRequest(inputs=TEXT, **SIDE))),
        "truncation_direction",
    ),
    "tei.v1.Predict/PredictStream": (
        lambda to: status(to.tei_predict.PredictStream(once(tei_pb2.PredictRequest(inputs=TEXT, **SIDE)))),
        "truncation_direction",
    ),
    "tei.v1.Predict/PredictPair": (
        lambda to: status(to.tei_predict.PredictPair(tei_pb2.PredictPairRequest(inputs=[TEXT, "", ""]))),
        "inputs",
    ),
    "tei.v1.Predict/PredictPairStream": (
        lambda to: status(
            to.tei_predict.PredictPairStream(once(tei_pb2.PredictPairRequest(inputs=[TEXT, "", ""])))
        ),
        "inputs",
    ),
    "tei.v1.Rerank/Rerank": (
        lambda to: status(to.tei_rerank.Rerank(tei_pb2.RerankRequest(texts=[TEXT], **SIDE))),
        "truncation_direction",
    ),
    "tei.v1.Rerank/RerankStream": (
        lambda to: status(to.tei_rerank.RerankStream(once(tei_pb2.RerankStreamRequest(text=TEXT, **SIDE)))),
        "truncation_direction",
    ),
    "tei.v1.Tokenize/Tokenize": (
        lambda to: status(to.tei_tokenize.Tokenize(tei_pb2.EncodeRequest(inputs=TEXT, prompt_name="x"))),
        "prompt_name",
    ),
    "tei.v1.Tokenize/TokenizeStream": (
        lambda to: status(
            to.tei_tokenize.TokenizeStream(once(tei_pb2.EncodeRequest(inputs=TEXT, prompt_name="x")))
        ),
        "prompt_name",
    ),
    "tei.v1.Tokenize/DecodeStream": (
        lambda to: status(to.tei_tokenize.DecodeStream(once(tei_pb2.DecodeRequest(ids=IDS)))),
        "ids",
    ),
    "tei.v1.Tokenize/Decode": (
        lambda to: status(to.tei_tokenize.Decode(tei_pb2.DecodeRequest(ids=IDS))),
        "ids",
    ),
    "inference.GRPCInferenceService/ModelInfer": (
        lambda to: status(to.oip.ModelInfer(tensors())),
        "temperature",
    ),
    "inference.GRPCInferenceService/ModelStreamInfer": (
        lambda to: status(to.oip.ModelStreamInfer(once(tensors()))),
        "temperature",
    ),
    "/v1/chat/completions": (
        lambda to: to.post("/v1/chat/completions", messages=MESSAGES, temperature="x"),
        "temperature",
    ),
    "/v1/completions": (lambda to: to.post("/v1/completions", prompt=TEXT, temperature="x"), "temperature"),
    "/v1/responses": (lambda to: to.post("/v1/responses", input=TEXT, temperature="x"), "temperature"),
    "/v1/messages": (lambda to: to.post("/v1/messages", messages=MESSAGES), "max_tokens"),
    "/v1/messages/count_tokens": (
        lambda to: to.post("/v1/messages/count_tokens", messages=MESSAGES, tools="x"),
        "tools",
    ),
    "/v1/embeddings": (lambda to: to.post("/v1/embeddings", input=TEXT, dimensions="x"), "dimensions"),
    "/pooling": (lambda to: to.post("/pooling", input=TEXT, dimensions="x"), "dimensions"),
    "/v1/rerank": (lambda to: to.post("/v1/rerank", query=TEXT, top_n="x"), "top_n"),
    "/v2/rerank": (lambda to: to.post("/v2/rerank", query=TEXT, top_n="x"), "top_n"),
    "/rerank": (lambda to: to.post("/rerank", query=TEXT, texts="x"), "texts"),
    "/v1/score": (lambda to: to.post("/v1/score", text_1=TEXT), "text_2"),
    "/score": (lambda to: to.post("/score", data_1=TEXT, data_2=[]), "data_2"),
    "/classify": (lambda to: to.post("/classify", input=TEXT, priority="x"), "priority"),
    "/tokenize": (lambda to: to.post("/tokenize", prompt=TEXT, add_special_tokens="x"), "add_special_tokens"),
    "/detokenize": (lambda to: to.post("/detokenize", tokens=IDS[:5000] + [-1]), "tokens"),
}
"""A call whose request is found wrong as soon as it is read, and the field that its error names."""


@asynccontextmanager
async def doors_of(checkpoint: Path, **flags: Any) -> AsyncIterator[Doors]:
    """Runs a service with all doors."""
    every = {"openai_port": 0, "vllm_engine": True, "open_inference": True, "tei": True}
    async with run_service(checkpoint, pooling_type="last", **every, **flags) as service:
        url = service.frontend.facts["openai"].removesuffix("/v1")
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            yield Doors(service, http)


async def test_each_door_reads_in_its_turn(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another tenant has the turns, nothing is found wrong, as nothing has been read."""
    async with doors_of(checkpoint, tokenizer_threads=1) as doors:
        parts = doors.service.frontend.parts
        for name, (call, field) in DOORS.items():
            waits = asyncio.Event()
            for turns in (held := (parts.large_messages._turns, parts.prompts.jobs.turns)):
                begin = turns.begin
                await begin("another")

                async def noted(*given: Any, begin: Any = begin, waits: asyncio.Event = waits) -> None:
                    waits.set()
                    await begin(*given)

                monkeypatch.setattr(turns, "begin", noted)
            answer, waiting = asyncio.ensure_future(call(doors)), asyncio.ensure_future(waits.wait())
            await asyncio.wait({answer, waiting}, return_when=asyncio.FIRST_COMPLETED)
            assert not answer.done(), (name, answer.result())
            monkeypatch.undo()
            for turns in held:
                turns.end("another")
            assert field in await answer, name


def test_no_door_is_missing() -> None:
    """Whatever takes a prompt is in the table: our methods by their names, others with their services."""
    watches = {"/pagewire.v1.AdminService/WatchLoad", "/grpc.health.v1.Health/Watch"}
    methods = {method.removeprefix("/") for method in (_CALLS | _STREAMS) - watches}
    rpcs = {name.rpartition("/")[2] if name.startswith("pagewire.v1.") else name for name in methods}
    paths = {operation.path for operation, _ in SERVED if operation.body is not None}
    paths -= {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}  # of admins, without a prompt
    assert set(DOORS) == {name for name in rpcs if not name.endswith("GetTokenizer")} | paths
