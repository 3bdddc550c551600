"""TokenizerService over real gRPC; it needs no engine."""

import hashlib

import grpc
import pytest

from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.servicers import tokenizer as servicer
from frontend.servicers.tokenizer import byte_offsets
from pagewire.v1 import tokenizer_pb2
from tests.frontend.fakes import BEGIN, END, byte_level_tokenizer, details_of, run_service

RAW = byte_level_tokenizer()
CHAT = {"messages": [{"role": "user", "content": [{"text": "é"}]}]}


async def tokenize(service, *prompts, **fields):
    request = tokenizer_pb2.TokenizeRequest(prompts=prompts, **fields)
    return (await service.tokenizer.Tokenize(request)).results


async def test_prompts_of_every_kind(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        results = await tokenize(
            service,
            {"text": "hi é"},
            {"text": "hi", "add_special_tokens": False},
            {"token_ids": {"ids": [7, 8]}},
            {"chat": CHAT},
            {"text": ""},
            rendered_text=True,
        )
        rendered = "<|begin|><|user|>é<|end|><|assistant|>"
        expected = [
            RAW.encode("hi é").ids,
            RAW.encode("hi").ids[1:],
            [7, 8],
            RAW.encode(rendered, add_special_tokens=False).ids,
            [BEGIN],
        ]
        assert [list(result.token_ids) for result in results] == expected
        assert [result.count for result in results] == [len(ids) for ids in expected]
        assert [result.rendered_text for result in results] == ["", "", "", rendered, ""]


async def test_texts_and_places_of_tokens(checkpoint, model):
    """Token texts are bytes, so they join to the text; places are in its UTF-8 form."""
    async with run_service(checkpoint, model=model, wait=False) as service:
        for text in ("hi the é🙂 x", "plain"):
            (result,) = await tokenize(
                service, {"text": text, "add_special_tokens": False}, token_texts=True, offsets=True
            )
            data = text.encode()
            assert b"".join(result.token_texts) == data
            places = list(zip(result.starts, result.ends, strict=True))
            for token_text, (start, end) in zip(result.token_texts, places, strict=True):
                assert token_text.lstrip() in data[start:end] or not token_text.strip()
                data[start:end].decode()  # never inside a code point
            assert places[-1][1] == len(data)


async def test_only_the_count(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        (result,) = await tokenize(service, {"text": "hi the"}, count_only=True, token_texts=True)
        assert result.count == 3 and not result.token_ids and not result.token_texts


async def test_truncation(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        (result,) = await tokenize(service, {"text": "abc", "truncate_to": 2}, token_texts=True)
        assert list(result.token_texts) == [b"<|begin|>", b"c"]


async def test_the_context_length_is_told_once_it_is_known(checkpoint, model):
    request = tokenizer_pb2.TokenizeRequest(prompts=[{"text": "a"}])
    async with run_service(checkpoint, model=model, wait=False) as service:
        assert (await service.tokenizer.Tokenize(request)).max_model_len == 0
        await service.engine.start()
        await service.frontend.wait_until_serving()
        assert (await service.tokenizer.Tokenize(request)).max_model_len == 200


async def test_detokenize(checkpoint, model):
    async with run_service(checkpoint, model=model, wait=False) as service:
        sequences = [RAW.encode("hi é🙂").ids, [BEGIN, END], []]
        request = {"sequences": [{"ids": ids} for ids in sequences]}
        response = await service.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(**request))
        assert list(response.texts) == ["hi é🙂", "", ""]
        request["skip_special_tokens"] = False
        response = await service.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(**request))
        assert list(response.texts) == ["<|begin|>hi é🙂", "<|begin|><|end|>", ""]


@pytest.mark.parametrize(
    ("method", "request_", "code", "path"),
    [
        ("Tokenize", tokenizer_pb2.TokenizeRequest(), "INVALID_ARGUMENT", "prompts"),
        (
            "Tokenize",
            tokenizer_pb2.TokenizeRequest(prompts=[{"text": "a"}, {"token_ids": {"ids": [10**6]}}]),
            "INVALID_ARGUMENT",
            "prompts[1].token_ids.ids",
        ),
        (
            "Tokenize",
            tokenizer_pb2.TokenizeRequest(prompts=[{"token_ids": {}}], offsets=True),
            "INVALID_ARGUMENT",
            "prompts[0].token_ids",
        ),
        (
            "Tokenize",
            tokenizer_pb2.TokenizeRequest(prompts=[{"chat": {**CHAT, "template": "x"}}]),
            "INVALID_ARGUMENT",
            "prompts[0].chat.template",
        ),
        ("Tokenize", tokenizer_pb2.TokenizeRequest(model="m", prompts=[{"text": "a"}]), "NOT_FOUND", None),
        (
            "Detokenize",
            tokenizer_pb2.DetokenizeRequest(sequences=[{"ids": [2**32 - 1]}]),
            "INVALID_ARGUMENT",
            "sequences[0].ids",
        ),
        ("Detokenize", tokenizer_pb2.DetokenizeRequest(model="m"), "NOT_FOUND", None),
    ],
)
async def test_refusals(checkpoint, model, method, request_, code, path):
    async with run_service(checkpoint, model=model, wait=False) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(service.tokenizer, method)(request_)
        assert caught.value.code() == grpc.StatusCode[code]
        if path is not None:
            violations = details_of(caught.value)["BadRequest"].field_violations
            assert [violation.field for violation in violations] == [path]


async def test_the_tokenizer_as_a_zip(checkpoint, model, monkeypatch):
    monkeypatch.setattr(servicer, "CHUNK", 1000)
    async with run_service(checkpoint, model=model, wait=False) as service:
        request = tokenizer_pb2.GetTokenizerRequest()
        parts = [part async for part in service.tokenizer.GetTokenizer(request)]
        data = b"".join(part.data for part in parts)
        assert data == model.archive.data and len(parts) == -(-len(data) // 1000)
        assert [bool(part.sha256) for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].sha256 == hashlib.sha256(data).hexdigest()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.tokenizer.GetTokenizer(tokenizer_pb2.GetTokenizerRequest(model="m")).read()
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_offsets_in_bytes_may_go_back():
    """Tokens inside one code point share its place, and a tokenizer may repeat itself."""
    text = "é🙂a"
    places = [(0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (0, 2), (2, 3)]
    read = TokenizedPrompt(token_ids=[0] * 7, text=text, offsets=places)
    assert byte_offsets(read) == [(0, 0), (0, 2), (0, 2), (2, 6), (2, 6), (0, 6), (6, 7)]
