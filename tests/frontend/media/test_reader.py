"""Images in prompts: from requests of every kind to what the core is sent."""

import asyncio
import base64
import sys
from pathlib import Path

import grpc
import pytest

from frontend.errors import ContextLengthExceeded, InvalidRequest
from frontend.media import expansion
from frontend.media import reader as reader_module
from frontend.media.llava import Llava
from frontend.model.info import ModelInfo, load_model
from frontend.prompts.prompt_encoding import PromptEncoder, TokenizedPrompt, packed
from pagewire.config import FrontendConfig
from pagewire.host import spawn
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u32
from pagewire.ipc.transport import pack, unpack
from pagewire.v1 import generation_pb2, model_pb2, prompt_pb2, tokenizer_pb2
from tests.frontend.fakes import Output, details_of, run_service, say
from tests.frontend.media.conftest import FolderOf
from tests.frontend.media.pictures import file_of, picture

COUNT = 16
"""Vectors of an image of the tiny LLaVA."""
PNG = file_of(picture(90, 60))
OTHER = file_of(picture(60, 90))
SEES = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_IMAGE]}}


@pytest.fixture
def folder(folder_of: FolderOf) -> Path:
    return folder_of("llava")


@pytest.fixture
def model(folder: Path) -> ModelInfo:
    return load_model(FrontendConfig(model=str(folder)))


@pytest.fixture
def encoder(model: ModelInfo) -> PromptEncoder:
    return PromptEncoder(model.tokenizer, model.chat_template, model.answers, None, model.images)


def read(encoder: PromptEncoder, **fields: object) -> TokenizedPrompt:
    return encoder.read(prompt_pb2.Prompt(**fields), "prompt", vocab_size=400, max_model_len=1024)


def image_id(model: ModelInfo) -> int:
    token = model.tokenizer.token_id("<image>")
    assert token is not None
    return token


def test_text_ids_and_chat_have_the_same_images(encoder: PromptEncoder, model: ModelInfo) -> None:
    token = image_id(model)
    text = read(encoder, text="a<image>b<image>", media=[{"data": PNG}, {"data": OTHER}])
    assert text.token_ids.count(token) == text.num_media_tokens == 2 * COUNT
    whole = [position for item in text.media for position in unpack_u32(item.positions)]
    assert whole == [place for place, each in enumerate(text.token_ids) if each == token]
    assert text.media[0].digest != text.media[1].digest
    assert len(text.token_ids) == 2 + 2 * COUNT
    plain = model.tokenizer.encode("a<image>b<image>", add_special_tokens=True).token_ids
    ids = read(encoder, token_ids={"ids": list(plain)}, media=[{"data": PNG}, {"data": OTHER}])
    assert ids.token_ids == text.token_ids and list(ids.media) == list(text.media)
    parts = [{"text": "a"}, {"media": {"data": PNG}}, {"text": "b"}, {"media": {"data": OTHER}}]
    chat = read(encoder, chat={"messages": [{"role": "user", "content": parts}]})
    assert [item.digest for item in chat.media] == [item.digest for item in text.media]
    assert "a<image>b<image>" in chat.text


def test_a_data_uri_is_the_file_in_it(encoder: PromptEncoder) -> None:
    uri = f"data:image/jpeg;base64,{base64.b64encode(PNG).decode()}"
    by_uri = read(encoder, text="<image>", media=[{"uri": uri}])
    assert list(by_uri.media) == list(read(encoder, text="<image>", media=[{"data": PNG}]).media)


def test_offsets_of_an_image_are_those_of_its_placeholder(encoder: PromptEncoder, model: ModelInfo) -> None:
    prompt = prompt_pb2.Prompt(text="ab<image>c", media=[{"data": PNG}], add_special_tokens=False)
    found = encoder.read(prompt, "prompt", vocab_size=400, offsets=True)
    place = found.token_ids.index(image_id(model))
    assert set(found.offsets[place : place + COUNT]) == {(2, 9)}
    assert len(found.offsets) == len(found.token_ids)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"text": "<image><image>", "media": [{"data": PNG}]}, "prompt.media"),
        ({"text": "no", "media": [{"data": PNG}]}, "prompt.media"),
        ({"text": "<image>"}, "prompt.media"),
        ({"chat": {"messages": [{"role": "user", "content": []}], "template_kwargs": {}}}, ""),
    ],
)
def test_there_are_as_many_media_as_placeholders(
    encoder: PromptEncoder, fields: dict[str, object], path: str
) -> None:
    if not path:
        assert not read(encoder, **fields).media
        return
    with pytest.raises(InvalidRequest, match="as many as the placeholders <image>") as caught:
        read(encoder, **fields)
    assert list(caught.value.violations) == [path]


def test_a_placeholder_that_a_client_writes_in_a_chat_is_text(
    encoder: PromptEncoder, model: ModelInfo
) -> None:
    parts = [{"text": "what is <image>?"}, {"media": {"data": PNG}}]
    found = read(encoder, chat={"messages": [{"role": "user", "content": parts}]})
    assert found.token_ids.count(image_id(model)) == COUNT


def test_a_damaged_file_is_refused_by_its_path(encoder: PromptEncoder) -> None:
    parts = [{"text": "a"}, {"media": {"data": PNG}}, {"media": {"data": PNG[:-500]}}]
    with pytest.raises(InvalidRequest, match="damaged") as caught:
        read(encoder, chat={"messages": [{"role": "user", "content": parts}]})
    assert list(caught.value.violations) == ["prompt.chat.messages[0].content[2].media"]


def test_pixels_and_bytes_are_limited_over_all_images(
    encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"text": "<image><image>", "media": [{"data": PNG}, {"data": PNG}]}
    monkeypatch.setattr(reader_module, "MAX_MEDIA_PIXELS", 2 * 90 * 60 - 1)
    with pytest.raises(InvalidRequest, match="one too many") as caught:
        read(encoder, **fields)
    assert list(caught.value.violations) == ["prompt.media[1]"]
    monkeypatch.setattr(reader_module, "MAX_MEDIA_PIXELS", 2 * 90 * 60)
    monkeypatch.setattr(expansion, "MAX_MEDIA_BYTES", 2 * 56 * 56 * 3 - 1)
    with pytest.raises(InvalidRequest, match="bytes in all as the encoder takes them") as caught:
        read(encoder, **fields)
    assert list(caught.value.violations) == ["prompt.media"]


def test_nobody_gets_pixels_that_no_engine_takes(encoder: PromptEncoder) -> None:
    """Those of a prompt that is counted alone, and of one that is too long."""
    prompt = prompt_pb2.Prompt(text="<image>", media=[{"data": PNG}])
    counted = encoder.read(prompt, "prompt", vocab_size=400)
    assert not counted.media and len(counted.token_ids) == counted.num_media_tokens == COUNT
    with pytest.raises(ContextLengthExceeded, match=f"{COUNT}"):
        encoder.read(prompt, "prompt", vocab_size=400, max_model_len=COUNT - 1)
    assert encoder.read(prompt, "prompt", vocab_size=400, max_model_len=COUNT).media


def test_an_image_that_takes_too_much_memory_to_cut(
    encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Llava, "cut", fail)
    with pytest.raises(InvalidRequest, match="too much memory to decode") as caught:
        read(encoder, text="<image>", media=[{"data": PNG}])
    assert list(caught.value.violations) == ["prompt.media"]


async def test_images_of_requests_in_flight_are_bounded(folder: Path) -> None:
    """By what the encoder takes of them, not by their files; requests of text go on."""
    prompt = {"text": "<image>", "media": [{"data": PNG}]}
    async with run_service(folder, None, **SEES) as service:
        service.frontend.parts.limits._media._size = 2 * 56 * 56 * 3 - 1
        first = asyncio.create_task(service.generate(prompt=prompt))
        handle = (await service.engine.requests.get()).handle
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(prompt=prompt)
        assert details_of(caught.value)["ErrorInfo"].reason == "FRONTEND_FULL"
        text = asyncio.create_task(service.generate(prompt={"text": "hi"}))
        other = (await service.engine.requests.get()).handle
        for each in (handle, other):
            await service.engine.output(each, Output([5], generation_pb2.FINISH_REASON_MAX_TOKENS))
        await asyncio.gather(first, text)
        assert not service.frontend.parts.limits._media.num_held


async def test_a_core_gets_the_images_of_a_request(folder: Path) -> None:
    parts = [{"media": {"data": PNG}}, {"text": "what?"}]
    prompt = {"chat": {"messages": [{"role": "user", "content": parts}]}}
    async with run_service(folder, say([5]), **SEES) as service:
        messages = await service.generate(prompt=prompt)
        request = await service.engine.requests.get()
        (item,) = request.media
        assert list(item.shape) == [56, 56, 3] and len(item.data) == 56 * 56 * 3
        assert len(unpack_u32(item.positions)) == COUNT
        usage = messages[-1].usage
        assert usage.image_tokens == COUNT < usage.prompt_tokens == len(request.prompt_token_ids) // 4
        described = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_IMAGES in described.capabilities and not described.images_caveat
        assert described.limits.max_media == 16
        counted = await service.tokenizer.Tokenize(
            tokenizer_pb2.TokenizeRequest(prompts=[prompt], count_only=True)
        )
        assert counted.results[0].count == usage.prompt_tokens


async def test_an_engine_that_sees_nothing_refuses_media(folder: Path) -> None:
    async with run_service(folder, say([5])) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="no encoder for images") as caught:
            await service.generate(prompt={"text": "<image>", "media": [{"data": PNG}]})
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "prompt.media[0]"
        described = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_IMAGES not in described.capabilities


async def test_a_model_whose_images_are_not_known_refuses_them(checkpoint: Path) -> None:
    async with run_service(checkpoint, say([5]), **SEES) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="the model sees none"):
            await service.generate(prompt={"text": "a", "media": [{"data": PNG}]})


async def test_an_image_that_takes_too_long_ends_its_reader_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = file_of(picture(4, 4).resize((6000, 6000)), "PNG")
    program = (
        "from frontend.prompts import process as reader_main;"
        "from pagewire.config import FrontendConfig;"
        "reader_main.CPU_LIMIT = 0.1;"
        f"reader_main.run(FrontendConfig(model={str(folder)!r}))"
    )
    monkeypatch.setattr(spawn, "command", lambda arguments: [sys.executable, "-c", program])
    async with run_service(folder, say([5]), **SEES) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="takes too much time to decode") as caught:
            await service.generate(prompt={"text": "<image>", "media": [{"data": bomb}]})
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "prompt.media"
        assert (await service.generate(prompt={"text": "hi"}))[-1].usage.prompt_tokens


def test_packed_media_are_merged_into_the_request(encoder: PromptEncoder) -> None:
    """As the core parses the frame: equal to a request that has the items as a field."""
    read_here = read(encoder, text="<image><image>", media=[{"data": PNG}, {"data": OTHER}])
    sent = packed(read_here)
    assert sent.packed_media and not sent.media and packed(sent) is sent
    request = engine_pb2.AddRequest(handle=7, cache_salt="a", prompt_token_ids=b"1234")
    frame = pack(engine_pb2.FrontendMessage(add_request=request), bytearray(sent.packed_media))
    request.media.extend(read_here.media)
    assert engine_pb2.FrontendMessage.FromString(unpack(frame)).add_request == request
