"""tei.v1 over a real socket, with stubs made of the protocol's file: what holds for all methods, Info and
Tokenize."""

import asyncio

import grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frontend.auth.authenticator import Access, access_of
from frontend.auth.tokens import digest_of
from frontend.rpc.interceptors.admission import _CALLS, _STREAMS
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from pagewire_gateways.tei.servicer import SERVICES
from tei_calls import EMBEDS, code_of, collect, each_of, embed, fields_of, refusal, text, tokenize
from tests.frontend.fakes import BEGIN, END, MAX_MODEL_LEN, encode, in_time, pool, run_service


async def test_a_deadline_ends_the_request(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call, sent, _ = await in_time(service, lambda seconds: embed(service).Embed(text(), timeout=seconds))
        assert (await refusal(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        aborted = await asyncio.wait_for(service.engine.aborts.get(), 30)
        assert aborted.handle == sent.handle


async def test_requests_take_slots(checkpoint):
    async with run_service(checkpoint, max_concurrent_requests=1, **EMBEDS) as service:
        waiting = embed(service).Embed(text())
        await asyncio.wait_for(service.engine.requests.get(), 30)
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        _, full = await collect(embed(service).EmbedStream(each_of(text())))
        assert full is not None and full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.cancel()


async def test_requests_belong_to_the_tokens_tenant(checkpoint, tmp_path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens:\n  - {{sha256: {digest_of('secret').hex()}, tenant: alice}}\n")
    headers = (("authorization", "Bearer secret"),)
    async with run_service(checkpoint, pool, auth_file=str(tokens), **EMBEDS) as service:
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await embed(service).Embed(text(), metadata=headers)).embeddings
        assert service.engine.requests.get_nowait().tenant == "alice"
        stream = embed(service).EmbedStream(metadata=headers)
        await stream.write(text())
        assert (await stream.read()).embeddings
        assert service.engine.requests.get_nowait().tenant == "alice"
        files = service.frontend._files
        await files.stop()
        files._interval = 0.01
        files.start()
        tokens.write_text("tokens: []\n")
        info = tei_pb2_grpc.InfoStub(service.channel).Info
        async with asyncio.timeout(60):
            while await code_of(info(tei_pb2.InfoRequest(), metadata=headers)) is None:
                await asyncio.sleep(0.01)
        await stream.write(text())
        assert (await refusal(stream.read())).code() is grpc.StatusCode.UNAUTHENTICATED, "revoked since"


WRONG = [
    (text(""), "inputs"),
    (text("a", dimensions=0), "dimensions"),
    (text("a", dimensions=9), "dimensions"),
    (text("a", prompt_name="query"), "prompt_name"),
    (text("a", truncation_direction=7), "truncation_direction"),
    (text("a" * (300 << 10), truncate=True), "inputs"),
]


async def test_what_is_wrong_is_named(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        for request, field in WRONG:
            error = await refusal(embed(service).Embed(request))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and fields_of(error) == [field], request
        wrong = tokenize(service).Tokenize(tei_pb2.EncodeRequest(inputs="a", prompt_name="query"))
        assert fields_of(await refusal(wrong)) == ["prompt_name"]
        assert fields_of(await refusal(tokenize(service).Decode(tei_pb2.DecodeRequest(ids=[9999])))) == [
            "ids"
        ]
        assert service.engine.requests.empty()


async def test_tokens_of_a_text(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        tokenizer = service.frontend.parts.model.tokenizer

        def ids_of(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).token_ids)

        request = tei_pb2.EncodeRequest(inputs="hi é<|end|>", add_special_tokens=True)
        first, *tokens = (await tokenize(service).Tokenize(request)).tokens
        assert first == tei_pb2.SimpleToken(id=BEGIN, text="<|begin|>", special=True)
        assert [token.id for token in tokens] == [*ids_of("hi"), *encode(" é"), END]
        data = request.inputs.encode()
        assert tokens[0].text == "hi" and (tokens[0].start, tokens[0].stop) == (0, 2)
        assert all(token.text.encode() == data[token.start : token.stop] for token in tokens)
        assert not any(token.special for token in tokens), "the text of a special token is part of the text"
        decode = tei_pb2.DecodeRequest(ids=[BEGIN, *encode("hi é")])
        assert (await tokenize(service).Decode(decode)).text == "<|begin|>hi é"
        decode.skip_special_tokens = True
        assert (await tokenize(service).Decode(decode)).text == "hi é"
        texts = ["a", "", "ccc"]
        encoded, error = await collect(
            tokenize(service).TokenizeStream(each_of(*(tei_pb2.EncodeRequest(inputs=each) for each in texts)))
        )
        assert error is None
        ids = [[token.id for token in each.tokens] for each in encoded]
        assert ids == [ids_of(each) for each in texts]
        decoded, error = await collect(
            tokenize(service).DecodeStream(each_of(*(tei_pb2.DecodeRequest(ids=each) for each in ids)))
        )
        assert error is None and [each.text for each in decoded] == texts


async def test_info(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert (info.model_id, info.model_dtype) == ("fake", "float32") and info.version
        assert info.model_type == tei_pb2.MODEL_TYPE_EMBEDDING and info.max_input_length == MAX_MODEL_LEN
        assert (info.max_batch_tokens, info.max_batch_requests) == (256, 32)
        assert info.max_client_batch_size == 1024 and info.max_concurrent_requests == 4096
        assert info.tokenization_workers >= 1 and not info.HasField("sha")


def test_methods_are_for_callers_with_a_token_and_take_slots():
    for name in SERVICES:
        for method in tei_pb2.DESCRIPTOR.services_by_name[name].methods:
            path = f"/tei.v1.{name}/{method.name}"
            assert access_of(path) is Access.AUTHENTICATED
            if name != "Info":
                assert path in (_STREAMS if method.client_streaming else _CALLS)


async def test_reflection_lists_the_services(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(service.channel).ServerReflectionInfo(iter([listing]))
        answer = await call.read()
        listed = {each.name for each in answer.list_services_response.service}
        assert {f"tei.v1.{name}" for name in SERVICES} <= listed
        call.cancel()


async def test_they_are_off_unless_asked_for(checkpoint):
    async with run_service(checkpoint, pool, pooling_type="last") as service:
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.UNIMPLEMENTED
