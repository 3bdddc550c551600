"""inference.GRPCInferenceService: the Open Inference Protocol (KServe v2), as Triton serves language models.

One prompt is a request of named tensors, over the same Generator as everything else. Requests of a stream run
side by side, like those of a multiplexed stream.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import count

import grpc

from frontend.call.call import Call
from frontend.errors import InvalidRequest, ModelNotFound, ServiceError
from frontend.field_names import renamed, renaming
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_call, current_caller, reauthenticated_call, sender
from frontend.rpc.error_mapping import guarded
from frontend.streams.multiplexer import Multiplexer
from frontend.streams.request_registry import Aborts
from frontend.streams.request_spec import ONE_MESSAGE
from pagewire import __version__
from pagewire.v1 import generation_pb2
from pagewire_gateways.open_inference.requests import INPUTS, NAMES, read_infer_request
from pagewire_gateways.open_inference.responses import FINAL, OUTPUTS, TensorWriter
from pagewire_gateways.protos import open_inference_pb2 as oip
from pagewire_gateways.protos import open_inference_pb2_grpc

DESCRIPTORS = (oip.DESCRIPTOR.services_by_name["GRPCInferenceService"],)
VERSION = "1"
"""Of the model; clients may leave it out."""
PLATFORM = "pagewire"

Requests = AsyncIterator[oip.ModelInferRequest]


class OpenInferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Generates from tensors, and says which ones."""

    descriptors = DESCRIPTORS
    interceptors = ()

    def __init__(self, parts: FrontendParts, aborts: Aborts) -> None:
        self._parts = parts
        self._config, self._model, self._generator = parts.config, parts.model, parts.generator
        self._state, self._limits, self._write_timeouts = parts.state, parts.limits, parts.write_timeouts

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)

    @guarded
    async def ServerLive(self, request: oip.ServerLiveRequest, context: Context) -> oip.ServerLiveResponse:
        return oip.ServerLiveResponse(live=True)

    @guarded
    async def ServerReady(self, request: oip.ServerReadyRequest, context: Context) -> oip.ServerReadyResponse:
        return oip.ServerReadyResponse(ready=self._state.serves)

    @guarded
    async def ModelReady(self, request: oip.ModelReadyRequest, context: Context) -> oip.ModelReadyResponse:
        try:
            await self._check_model(request.name, request.version, "name")
        except ModelNotFound:
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=self._state.serves)

    @guarded
    async def ServerMetadata(
        self, request: oip.ServerMetadataRequest, context: Context
    ) -> oip.ServerMetadataResponse:
        return oip.ServerMetadataResponse(name="pagewire", version=__version__)

    @guarded
    async def ModelMetadata(
        self, request: oip.ModelMetadataRequest, context: Context
    ) -> oip.ModelMetadataResponse:
        await self._check_model(request.name, request.version, "name")
        name = self._model.answering_name(request.name)
        answer = oip.ModelMetadataResponse(name=name, versions=[VERSION], platform=PLATFORM)
        for name, tensor in INPUTS.items():
            answer.inputs.add(name=name, datatype=tensor.datatype, shape=[-1 if tensor.is_list else 1])
        for name, datatype in OUTPUTS.items():
            answer.outputs.add(name=name, datatype=datatype, shape=[-1 if name == "output_log_probs" else 1])
        return answer

    @guarded
    async def ModelInfer(self, request: oip.ModelInferRequest, context: Context) -> oip.ModelInferResponse:
        self._state.require_open()
        await self._check_model(request.model_name, request.model_version)
        read = partial(read_infer_request, request)
        call, size = current_call(context), request.ByteSize()
        asked, call = await self._generator.in_turn(read, request.id, size, call)
        if asked.stream:
            raise InvalidRequest({"stream": "needs ModelStreamInfer"})
        with renaming(NAMES):
            async with self._generator.open(asked.request, call, ONE_MESSAGE) as stream:
                message = await stream.take()
        assert message is not None  # a stream ends with a message or raises
        name = self._model.answering_name(request.model_name)
        return TensorWriter(request, asked.outputs, name, VERSION).answer(message)

    @guarded
    async def ModelStreamInfer(self, requests: Requests, context: Context) -> None:
        self._state.require_open()
        multiplexer = Multiplexer(
            self._generator, self._state, self._limits, self._config.max_multiplexed_requests
        )
        infers = _Infers(multiplexer, self._parts, self._check_model)
        async with aclosing(multiplexer):
            reading = asyncio.create_task(infers.read(requests, context), name="infer requests")
            try:
                with self._write_timeouts.writer(sender(context)) as writer:
                    while (batch := await multiplexer.take()) is not None:
                        for answer in infers.answers(batch):
                            await writer.write(answer)
            finally:
                reading.cancel()

    async def _check_model(self, name: str, version: str, field: str = "model_name") -> None:
        """field: has the name. Raises ServiceError."""
        await self._generator.check_model(name, current_caller(), field)
        if version not in ("", VERSION):
            raise ModelNotFound(f"{name} {version}", field.replace("name", "version"))


@dataclass(frozen=True, slots=True)
class _Infer:
    """A request in flight."""

    writer: TensorWriter
    empty_final: bool


class _Infers:
    """The requests of one stream: the multiplexer's ids stand for the client's, which need not differ."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        parts: FrontendParts,
        check_model: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._multiplexer = multiplexer
        self._large_messages = parts.large_messages
        self._check_model = check_model
        self._model = parts.model
        self._stem, self._numbers = secrets.token_hex(8), count()
        self._in_flight: dict[str, _Infer] = {}

    async def read(self, requests: Requests, context: Context) -> None:
        """Begins each request, until the client has no more or sends one that cannot be parsed."""
        try:
            async for request in requests:
                await self._begin(request, partial(reauthenticated_call, context))
                await self._multiplexer.wait_for_room()
        except Exception as error:
            self._multiplexer.break_off(error)
        else:
            self._multiplexer.half_close()

    async def _begin(self, request: oip.ModelInferRequest, authenticate: Callable[[], Call]) -> None:
        """Begins a request, read in the tenant's turn; what is wrong with it becomes its error."""
        name = f"{self._stem}-{next(self._numbers)}"
        command = generation_pb2.GenerateMultiplexedRequest()
        outputs: list[str] = []
        empty_final = False
        try:
            await self._check_model(request.model_name, request.model_version)
            read = partial(read_infer_request, request)
            asked = await self._large_messages.run(read, request.ByteSize(), current_caller())
            command.generate.CopyFrom(asked.request)
            outputs, empty_final = asked.outputs, asked.empty_final
        except ServiceError as error:
            authenticate = partial(_refuse, error)
        command.generate.request_id = name
        answering = self._model.answering_name(request.model_name)
        self._in_flight[name] = _Infer(TensorWriter(request, outputs, answering, VERSION), empty_final)
        self._multiplexer.handle(command, authenticate)

    def answers(
        self, batch: generation_pb2.GenerateMultiplexedResponse
    ) -> Iterator[oip.ModelStreamInferResponse]:
        """Yields the answers for what the multiplexer has."""
        for response in batch.responses:
            infer = self._in_flight[response.request_id]
            answer = infer.writer.answer(response)
            is_last = any(output.HasField("finish") for output in response.sequences)
            answer.parameters[FINAL].bool_param = is_last and not infer.empty_final
            yield oip.ModelStreamInferResponse(infer_response=answer)
            if is_last:
                del self._in_flight[response.request_id]
            if is_last and infer.empty_final:
                final = infer.writer.empty()
                final.parameters[FINAL].bool_param = True
                yield oip.ModelStreamInferResponse(infer_response=final)
        for error in batch.errors:
            empty = self._in_flight.pop(error.request_id).writer.empty()
            path, colon, rest = error.message.partition(": ")
            text = f"{renamed(path, NAMES)}{colon}{rest}"
            yield oip.ModelStreamInferResponse(error_message=text, infer_response=empty)


def _refuse(error: ServiceError) -> Call:
    raise error
