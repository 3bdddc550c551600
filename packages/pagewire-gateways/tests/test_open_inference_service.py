"""inference.GRPCInferenceService over a real socket, with stubs made of the protocol's own file."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frontend.auth.authenticator import Access, access_of
from frontend.call.messages import SMALL_MESSAGE_BYTES
from pagewire.v1 import generation_pb2
from pagewire_gateways.protos import open_inference_pb2 as oip
from pagewire_gateways.protos import open_inference_pb2_grpc
from tests.frontend.fakes import Output, Service, abort_in_turn, details_of, encode, run_service, say
from tests.patience import soon

SERVICE = "inference.GRPCInferenceService"
CODES = {"INT32": "i", "UINT64": "Q", "FP32": "f", "BOOL": "?"}


def stub(service: Service) -> Any:
    """A client of the service."""
    return open_inference_pb2_grpc.GRPCInferenceServiceStub(service.channel)


def texts(*values: str | bytes) -> bytes:
    """Elements of BYTES."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return b"".join(struct.pack("<I", len(value)) + value for value in encoded)


def make(*outputs: str, request_id: str = "", **tensors: Sequence[Any]) -> oip.ModelInferRequest:
    """A request. tensors: name -> datatype and elements; the prompt is "hi" unless given."""
    request = oip.ModelInferRequest(model_name="fake", id=request_id)
    for name, (datatype, *values) in {"text_input": ("BYTES", "hi"), **tensors}.items():
        request.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        packed = (
            texts(*values)
            if datatype == "BYTES"
            else struct.pack(f"<{len(values)}{CODES[datatype]}", *values)
        )
        request.raw_input_contents.append(packed)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def read(answer: oip.ModelInferResponse) -> dict[str, Any]:
    """The elements of each tensor."""
    found: dict[str, Any] = {}
    for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            (length,) = struct.unpack_from("<I", raw)
            assert len(raw) == 4 + length and list(tensor.shape) == [1]
            found[tensor.name] = raw[4:].decode()
        else:
            code = "I" if tensor.datatype == "UINT32" else "f"
            found[tensor.name] = list(struct.unpack(f"<{tensor.shape[0]}{code}", raw))
    return found


async def infer_stream(
    service: Service, *requests: oip.ModelInferRequest
) -> list[oip.ModelStreamInferResponse]:
    """All answers to the requests of one stream."""

    async def send() -> Any:
        for request in requests:
            yield request

    return [answer async for answer in stub(service).ModelStreamInfer(send())]


async def test_every_tensor_reaches_the_engine(checkpoint):
    async with run_service(checkpoint, say(encode("hello")), open_inference=True) as service:
        request = make(
            max_tokens=("INT32", 7),
            min_tokens=("INT32", 2),
            stop_words=("BYTES", "zz", "yy"),
            bad_words=("BYTES", "x"),
            end_id=("INT32", 9),
            pad_id=("INT32", 0),
            temperature=("FP32", 0.25),
            top_k=("INT32", 3),
            top_p=("FP32", 0.5),
            repetition_penalty=("FP32", 2.0),
            random_seed=("UINT64", (1 << 64) - 1),
            stream=("BOOL", False),
            sampling_parameters=(
                "BYTES",
                '{"presence_penalty": 1, "frequency_penalty": 0.5, "stop": ["xx"]}',
            ),
        )
        request.parameters["min_p"].double_param = 0.125
        request.parameters["priority"].uint64_param = 5
        answer = await stub(service).ModelInfer(request)
        assert read(answer) == {"text_output": "hello"} and answer.model_version == "1"
        sent = await soon(service.engine.requests.get())
        sampling, stopping = sent.sampling, sent.stopping
        assert (stopping.max_tokens, stopping.min_tokens) == (7, 2) and list(stopping.stop_token_ids) == [9]
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 3, 0.5)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, 0.5)
        assert (sampling.repetition_penalty, sampling.min_p) == (2, 0.125)
        assert sampling.seed == (1 << 64) - 1 and sent.bad_words and sent.priority == 5


async def test_tensors_of_an_answer(checkpoint):
    async with run_service(checkpoint, say(encode("he"), encode("llo")), open_inference=True) as service:
        names = ("text_output", "finish_reason", "num_output_tokens", "cum_log_probs", "output_log_probs")
        request = make(*names, request_id="mine", exclude_input_in_output=("BOOL", False))
        answer = await stub(service).ModelInfer(request)
        found = read(answer)
        assert (
            answer.id == "mine" and found["text_output"] == "hihello" and found["finish_reason"] == "length"
        )
        assert found["num_output_tokens"] == [5] and len(found["output_log_probs"]) == 5
        assert found["cum_log_probs"] == pytest.approx([sum(found["output_log_probs"])])


async def test_typed_contents_are_taken_too(checkpoint):
    async with run_service(checkpoint, say(encode("hello")), open_inference=True) as service:
        request = oip.ModelInferRequest(model_name="fake")
        text = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
        text.contents.bytes_contents.append(b"hi")
        most = request.inputs.add(name="max_tokens", datatype="INT64", shape=[1])
        most.contents.int64_contents.append(6)
        assert read(await stub(service).ModelInfer(request)) == {"text_output": "hello"}
        sent = await soon(service.engine.requests.get())
        assert sent.stopping.max_tokens == 6


async def test_requests_of_a_stream_run_side_by_side(checkpoint):
    def script(request):
        yield Output(encode("he"))
        yield Output(encode("llo"), generation_pb2.FINISH_REASON_MAX_TOKENS)

    async with run_service(checkpoint, script, open_inference=True) as service:
        empty = make(request_id="b", stream=("BOOL", True))
        empty.parameters["triton_enable_empty_final_response"].bool_param = True
        answers = await infer_stream(
            service,
            make(request_id="a", stream=("BOOL", True)),
            empty,
            make(request_id="c"),
            make(request_id="wrong", max_tokens=("INT32", -1)),
            make(request_id="worse", nonsense=("INT32", 0)),
        )
        errors = {each.infer_response.id: each.error_message for each in answers if each.error_message}
        assert errors["wrong"].startswith("max_tokens: ") and errors["worse"].startswith("nonsense: ")
        text, finals = {}, {}
        for each in answers:
            answer = each.infer_response
            if not each.error_message:
                text[answer.id] = text.get(answer.id, "") + read(answer).get("text_output", "")
                finals.setdefault(answer.id, []).append(answer.parameters["triton_final_response"].bool_param)
        assert text == {"a": "hello", "b": "hello", "c": "hello"}
        assert all(flags[-1] and not any(flags[:-1]) for flags in finals.values())
        assert len(finals["c"]) == 1, "one answer, without stream"
        assert not answers[-1].infer_response.outputs or finals["b"][-1]


async def test_equal_ids_of_two_streams_do_not_meet(checkpoint):
    async with run_service(checkpoint, say(encode("hello")), open_inference=True) as service:
        pairs = await asyncio.gather(
            *(infer_stream(service, make(request_id="a"), make(request_id="a")) for _ in "12")
        )
        for answers in pairs:
            assert [read(each.infer_response)["text_output"] for each in answers] == ["hello"] * 2


async def test_a_cancelled_stream_aborts_its_requests(checkpoint):
    async with run_service(
        checkpoint, lambda request: [Output(encode("he"))], open_inference=True
    ) as service:

        async def send() -> Any:
            yield make(stream=("BOOL", True))
            await asyncio.Event().wait()

        call = stub(service).ModelStreamInfer(send())
        assert read((await call.read()).infer_response) == {"text_output": "he"}
        call.cancel()
        await soon(service.engine.aborts.get())


WRONG = [
    (make(stream=("BOOL", True)), "stream"),
    (make(max_tokens=("FP32", 1.0)), "max_tokens"),
    (make(max_tokens=("INT32", 1, 2)), "max_tokens"),
    (make(max_tokens=("INT32", -1)), "max_tokens"),
    (make(temperature=("FP32", 1e9)), "temperature"),
    (make(text_input=("BYTES", "a", "b")), "text_input"),
    (make(text_input=("BYTES", b"\xff")), "text_input"),
    (make(text_input=("BYTES", "x" * 300)), "text_input"),
    (make(unheard_of=("INT32", 1)), "unheard_of"),
    (make(sampling_parameters=("BYTES", "[")), "sampling_parameters"),
    (make(sampling_parameters=("BYTES", '{"sampling_parameters": "{}"}')), "sampling_parameters"),
    (make("logits"), "outputs"),
    (make("text_output", "text_output"), "outputs"),
    (make(request_id="x" * 257), "id"),
    (oip.ModelInferRequest(model_name="fake"), "text_input"),
    (oip.ModelInferRequest(model_name="fake", raw_input_contents=[b""]), "raw_input_contents"),
]


def broken(name: str, datatype: str, raw: bytes, shape: Sequence[int] = (1,)) -> oip.ModelInferRequest:
    """A request with one tensor whose bytes do not fit."""
    request = oip.ModelInferRequest(model_name="fake", raw_input_contents=[raw])
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


BROKEN = [
    broken("text_input", "BYTES", b"\xff\xff\xff\xffab"),
    broken("text_input", "BYTES", b"\x01"),
    broken("text_input", "BYTES", b"", [1 << 40, 1 << 40]),
    broken("text_input", "BYTES", texts("hi"), [-1, -1]),
    broken("text_input", "BYTES", texts("hi"), [1] * 9),
    broken("max_tokens", "INT32", b"\0\0\0"),
    broken("max_tokens", "INT32", b"", [0]),
    broken("max_tokens", "INT8", bytes((1 << 20) + 1), [(1 << 20) + 1]),
    broken("stop_words", "BYTES", texts("x", "y", "z"), [2]),
    broken("max_tokens", "INT99", b"\0\0\0\0"),
    broken("max_tokens", "FP16", b"\0\0"),
]


async def test_what_is_wrong_is_named(checkpoint):
    async with run_service(checkpoint, say(encode("hello")), open_inference=True) as service:
        cases = [*WRONG, *((request, request.inputs[0].name) for request in BROKEN)]
        for request, name in cases:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub(service).ModelInfer(request)
            fields = [each.field for each in details_of(refused.value)["BadRequest"].field_violations]
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and fields == [name], request
        for model, version in (("other", ""), ("fake", "2")):
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                await stub(service).ModelInfer(oip.ModelInferRequest(model_name=model, model_version=version))
            assert missing.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_model_and_the_server_say_what_they_are(checkpoint):
    async with run_service(checkpoint, open_inference=True) as service:
        client = stub(service)
        assert (await client.ServerLive(oip.ServerLiveRequest())).live
        assert (await client.ServerReady(oip.ServerReadyRequest())).ready
        assert (await client.ModelReady(oip.ModelReadyRequest(name="fake", version="1"))).ready
        assert not (await client.ModelReady(oip.ModelReadyRequest(name="other"))).ready
        assert (await client.ServerMetadata(oip.ServerMetadataRequest())).name == "pagewire"
        model = await client.ModelMetadata(oip.ModelMetadataRequest(name="fake"))
        shapes = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in model.inputs}
        assert shapes["text_input"] == ("BYTES", [1]) and shapes["stop_words"] == ("BYTES", [-1])
        assert [tensor.name for tensor in model.outputs][0] == "text_output"
        service.frontend.state.drain()
        assert not (await client.ServerReady(oip.ServerReadyRequest())).ready


def test_the_service_is_for_callers_with_a_token():
    assert access_of(f"/{SERVICE}/ModelInfer") is Access.AUTHENTICATED


async def test_reflection_lists_it(checkpoint):
    async with run_service(checkpoint, open_inference=True) as service:
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(service.channel).ServerReflectionInfo(iter([listing]))
        answer = await call.read()
        assert SERVICE in [each.name for each in answer.list_services_response.service]
        call.cancel()


async def test_it_is_off_unless_asked_for(checkpoint):
    async with run_service(checkpoint) as service:
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await stub(service).ServerLive(oip.ServerLiveRequest())
        assert missing.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_requests_take_slots(checkpoint):
    async with run_service(
        checkpoint, lambda request: [], open_inference=True, max_concurrent_requests=1
    ) as service:
        waiting = stub(service).ModelInfer(make())
        await soon(service.engine.requests.get())
        with pytest.raises(grpc.aio.AioRpcError) as full:
            await stub(service).ModelInfer(make())
        assert full.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.cancel()


async def test_an_abort_of_what_waits_for_its_turn(checkpoint):
    async with run_service(checkpoint, open_inference=True) as service:
        padded = "{" + " " * SMALL_MESSAGE_BYTES + "}"
        request = make(request_id="mine", sampling_parameters=("BYTES", padded))
        answer = await abort_in_turn(service, lambda: stub(service).ModelInfer(request))
        assert read(answer)["text_output"] == ""
