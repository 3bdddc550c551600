"""Files that requests name by their digests in place of them."""

from hashlib import sha256

import grpc
import pytest

from frontend.errors import InvalidRequest, MediaUnknown
from frontend.media.kept import KeptFiles
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2, prompt_pb2, tokenizer_pb2
from tests.frontend.fakes import details_of, run_service, say
from tests.frontend.media.pictures import file_of, picture
from tests.vision_models import make_vision_model

PNG = file_of(picture(90, 60))
DIGEST = sha256(PNG).digest()


def prompt(*media: dict[str, bytes]) -> prompt_pb2.Prompt:
    return prompt_pb2.Prompt(media=[prompt_pb2.Media(**each) for each in media])


def named(file: bytes) -> prompt_pb2.Prompt:
    return prompt({"sha256": sha256(file).digest()})


def has(kept: KeptFiles, file: bytes, tenant: str | None) -> bool:
    asked = named(file)
    try:
        kept.put_files([("prompt", asked)], tenant, 200)
    except MediaUnknown:
        return False
    assert asked.media[0].data == file
    return True


def test_a_tenant_finds_its_own_files_alone() -> None:
    kept = KeptFiles(100)
    kept.keep(prompt({"data": b"one"}), "a")
    assert has(kept, b"one", "a") and not has(kept, b"one", "b") and not has(kept, b"one", None)


def test_the_least_recently_used_of_who_has_most_leave() -> None:
    kept = KeptFiles(100)
    kept.keep(prompt({"data": b"b" * 30}), "b")
    for file in (b"1" * 30, b"2" * 30):
        kept.keep(prompt({"data": file}), "a")
    assert has(kept, b"1" * 30, "a")
    kept.keep(prompt({"data": b"3" * 30}), "a")
    assert not has(kept, b"2" * 30, "a")
    assert has(kept, b"1" * 30, "a") and has(kept, b"3" * 30, "a") and has(kept, b"b" * 30, "b")
    assert kept.num_bytes == 90
    kept.keep(prompt({"data": b"4" * 101}), "a")
    kept.keep(prompt({"data": b"3" * 30}), "a")
    assert kept.num_bytes == 90 and not has(kept, b"4" * 101, "a")


def test_a_prompt_gets_all_of_its_files_or_none() -> None:
    kept = KeptFiles(100)
    kept.keep(prompt({"data": b"one"}), None)
    parts = [prompt_pb2.ContentPart(media={"sha256": sha256(each).digest()}) for each in (b"one", b"two")]
    chat = prompt_pb2.Prompt(chat={"messages": [{"role": "user", "content": parts}]})
    with pytest.raises(MediaUnknown) as caught:
        kept.put_files([("prompt", chat)], None, 200)
    assert list(caught.value.violations) == ["prompt.chat.messages[0].content[1].media.sha256"]
    assert all(part.media.sha256 for part in chat.chat.messages[0].content)


def test_files_have_no_more_bytes_than_there_is_room_for() -> None:
    """However often one is named, in however many prompts; nothing is copied before that is known."""
    kept = KeptFiles(100)
    kept.keep(prompt({"data": b"1" * 40}), None)
    digest = {"sha256": sha256(b"1" * 40).digest()}
    prompts = [("prompts[0]", prompt(digest, digest)), ("prompts[1]", prompt(digest))]
    with pytest.raises(InvalidRequest) as caught:
        kept.put_files(prompts, None, 119)
    assert list(caught.value.violations) == ["prompts[1].media[0].sha256"]
    assert all(media.sha256 for _, each in prompts for media in each.media)
    kept.put_files(prompts, None, 120)
    assert all(media.data == b"1" * 40 for _, each in prompts for media in each.media)


async def test_a_digest_is_the_file_that_a_request_has_brought(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = make_vision_model(tmp_path_factory.mktemp("llava"), "llava")
    image = {"media_kinds": [engine_pb2.MEDIA_KIND_IMAGE]}
    async with run_service(folder, say([5]), engine_options=image, max_request_bytes=1 << 15) as service:
        asked = {"prompt": {"text": "<image>", "media": [{"sha256": DIGEST}]}, "sampling": {"seed": 1}}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(**asked)
        details = details_of(caught.value)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert details["ErrorInfo"].reason == "MEDIA_UNKNOWN"
        assert [each.field for each in details["BadRequest"].field_violations] == ["prompt.media[0].sha256"]

        brought = {"prompt": {"text": "<image>", "media": [{"data": PNG}]}, "sampling": {"seed": 1}}
        await service.generate(**brought)
        delivered = generation_pb2.DeliveredSequence(index=0)
        messages = await service.generate(**asked, continuation={"sequences": [delivered]})
        assert not messages[0].media_digests  # which are of what was fetched
        by_data, by_digest = [await service.engine.requests.get() for _ in range(2)]
        assert list(by_digest.media) == list(by_data.media) and by_data.media
        assert by_digest.content_digest == by_data.content_digest
        both = [asked["prompt"], brought["prompt"]]
        counted = await service.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompts=both))
        assert counted.results[0] == counted.results[1]

        many = -(-service.frontend.parts.config.max_request_bytes // len(PNG))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            request = tokenizer_pb2.TokenizeRequest(prompts=[asked["prompt"]] * many)
            await service.tokenizer.Tokenize(request)
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field.endswith(".media[0].sha256") and "too large" in violation.description

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.generate(prompt={"text": "<image>", "media": [{"sha256": b"short"}]})
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert (violation.field, violation.description) == ("prompt.media[0].sha256", "must have 32 bytes")
