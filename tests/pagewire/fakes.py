"""A gRPC server for tests of the clients: answers what the test puts in."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from pagewire.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    inspection_pb2,
    model_pb2,
    model_pb2_grpc,
    pooling_pb2,
    pooling_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

Responses = Callable[[generation_pb2.GenerateRequest, Any], Iterator[generation_pb2.GenerateResponse]]
ManyResponses = Callable[[Iterator[Any], Any], Iterator[generation_pb2.GenerateMultiplexedResponse]]
NAMES = "abcde"
"""Ids of the requests, and names of the tenants, that are listed in pages."""


class FakeService(
    generation_pb2_grpc.GenerationServiceServicer,
    tokenizer_pb2_grpc.TokenizerServiceServicer,
    model_pb2_grpc.ModelServiceServicer,
    pooling_pb2_grpc.PoolingServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
):
    """Remembers requests; `respond` makes the messages of Generate, `respond_many` of GenerateMultiplexed."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.respond: Responses = lambda request, context: iter(())
        self.respond_many: ManyResponses = lambda commands, context: iter(())
        self.ended = threading.Event()
        self.health = health.HealthServicer()

    def Generate(self, request, context):
        self.requests.append(request)
        context.add_callback(self.ended.set)
        yield from self.respond(request, context)

    def GenerateUnary(self, request, context):
        self.requests.append(request)
        context.add_callback(self.ended.set)
        return next(self.respond(request, context))

    def GenerateMultiplexed(self, request_iterator, context):
        context.add_callback(self.ended.set)
        yield from self.respond_many(request_iterator, context)

    def Abort(self, request, context):
        return generation_pb2.AbortResponse(aborted_request_ids=request.request_ids[:1])

    def Tokenize(self, request, context):
        self.requests.append(request)
        tokenization = tokenizer_pb2.Tokenization(count=2, token_ids=[5, 6], rendered_text="rendered")
        return tokenizer_pb2.TokenizeResponse(results=[tokenization])

    def Detokenize(self, request, context):
        return tokenizer_pb2.DetokenizeResponse(texts=[" ".join(map(str, request.sequences[0].ids))])

    def ScoreContinuations(self, request, context):
        self.requests.append(request)
        scores = [
            pooling_pb2.ContinuationScore(logprob=-1.5, tokens=2, token_logprobs=[-1, -0.5])
            for _ in request.continuations
        ]
        return pooling_pb2.ScoreContinuationsResponse(scores=scores)

    def Score(self, request, context):
        self.requests.append(request)
        scores = [{"index": 1, "score": 0.5}, {"index": 0, "score": 0.25}]
        return pooling_pb2.ScoreResponse(scores=scores)

    def Classify(self, request, context):
        self.requests.append(request)
        rows = [{"probabilities": [0.25, 0.75]}] * len(request.inputs)
        return pooling_pb2.ClassifyResponse(labels=["a", "b"], results=rows)

    def Embed(self, request, context):
        self.requests.append(request)
        vectors = [pooling_pb2.Embedding(values=[place, 0.5]) for place in range(len(request.inputs))]
        if request.raw_dtype:
            dtype = "uint8" if request.raw_dtype == "ubinary" else "int8"
            vectors = [pooling_pb2.Embedding(raw={"dtype": dtype, "data": b"\x80\x7f"})]
        if request.kind:
            for vector in vectors:
                vector.token_ids.extend([7, 8])
        return pooling_pb2.EmbedResponse(embeddings=vectors)

    def ListModels(self, request, context):
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="m")])

    def GetModel(self, request, context):
        return model_pb2.GetModelResponse(model=model_pb2.Model(name=request.name or "m"))

    def GetServerInfo(self, request, context):
        return admin_pb2.GetServerInfoResponse(version="1")

    def GetLoad(self, request, context):
        return admin_pb2.GetLoadResponse(load=admin_pb2.Load(ranks=[admin_pb2.RankLoad(running_requests=3)]))

    def ResetCache(self, request, context):
        self.requests.append(request)
        return admin_pb2.ResetCacheResponse()

    def WatchLoad(self, request, context):
        self.requests.append(request)
        context.add_callback(self.ended.set)
        running = 0
        while context.is_active():
            running += 1
            rank = admin_pb2.RankLoad(running_requests=running)
            yield admin_pb2.WatchLoadResponse(load=admin_pb2.Load(ranks=[rank]))

    def ListRequests(self, request, context):
        infos, token = self._page(request)
        found = [inspection_pb2.RequestInfo(request_id=name) for name in infos]
        return inspection_pb2.ListRequestsResponse(requests=found, total=len(NAMES), next_page_token=token)

    def ListTenants(self, request, context):
        infos, token = self._page(request)
        found = [inspection_pb2.TenantInfo(tenant=name) for name in infos]
        return inspection_pb2.ListTenantsResponse(tenants=found, total=len(NAMES), next_page_token=token)

    def _page(self, request):
        """Returns the page of NAMES that is asked for, and the token of the next one."""
        self.requests.append(request)
        start = int(request.page_token or 0)
        end = start + request.page_size
        return NAMES[start:end], str(end) if end < len(NAMES) else ""

    def set_serving(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        self.health.set("", status.SERVING if serving else status.NOT_SERVING)


@contextlib.contextmanager
def running(service: FakeService) -> Iterator[str]:
    """Serves it; gives the address."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(service, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    pooling_pb2_grpc.add_PoolingServiceServicer_to_server(service, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(service.health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def fail(context: Any, code: grpc.StatusCode, message: str, *details: Any) -> None:
    """Ends the call with a status that carries details."""
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=message, details=packed)
    context.abort_with_status(rpc_status.to_status(status))


def words(request: generation_pb2.GenerateRequest, context: Any) -> Iterator[generation_pb2.GenerateResponse]:
    """Two sequences, three messages."""
    finish = generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_STOP, stop="!")
    end = generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_EOS, token_id=2)
    yield generation_pb2.GenerateResponse(
        request_id="r1",
        model="m",
        seed=7,
        prompt=generation_pb2.PromptInfo(tokens=3),
        sequences=[
            generation_pb2.SequenceOutput(index=0, text="Hel", token_ids=[10, 11], token_count=2),
            generation_pb2.SequenceOutput(index=1, text="Bye", token_ids=[20], token_count=1, finish=end),
        ],
    )
    rest = generation_pb2.SequenceOutput(index=0, text="lo", token_ids=[12], position=2, token_count=1)
    yield generation_pb2.GenerateResponse(sequences=[rest])
    last = generation_pb2.SequenceOutput(index=0, position=3, finish=finish)
    usage = generation_pb2.Usage(prompt_tokens=3, completion_tokens=4)
    timings = generation_pb2.Timings()
    timings.total.FromMilliseconds(1500)
    yield generation_pb2.GenerateResponse(sequences=[last], usage=usage, timings=timings)


def endless(
    request: generation_pb2.GenerateRequest, context: Any
) -> Iterator[generation_pb2.GenerateResponse]:
    """Goes on until the client leaves."""
    yield next(words(request, context))
    while context.is_active():
        yield generation_pb2.GenerateResponse(
            sequences=[generation_pb2.SequenceOutput(index=0, text="x", token_ids=[1], token_count=1)]
        )


def endless_many(
    commands: Iterator[Any], context: Any
) -> Iterator[generation_pb2.GenerateMultiplexedResponse]:
    """The same, for the first request of a multiplexed stream."""
    request_id = next(commands).generate.request_id
    for response in endless(generation_pb2.GenerateRequest(), context):
        response.request_id = request_id
        yield generation_pb2.GenerateMultiplexedResponse(responses=[response])
