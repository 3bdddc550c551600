"""Files of images that are made to hurt: the request is refused by its field, and the service goes on."""

from pathlib import Path

import grpc
import pytest

from frontend.media.decode import ImageProblem, decode, open_image
from pagewire.internal.v1 import engine_pb2
from tests.frontend.fakes import details_of, run_service, say
from tests.hostile.image_files import READ, SMALL_AND_LARGE
from tests.vision_models import make_vision_model

SEES = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_IMAGE]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("llava"), "llava")


@pytest.mark.parametrize("name", SMALL_AND_LARGE)
def test_a_file_that_is_refused(name: str) -> None:
    with pytest.raises(ImageProblem):
        decode(open_image(SMALL_AND_LARGE[name]))


@pytest.mark.parametrize("name", READ)
def test_an_odd_file_that_is_read(name: str) -> None:
    image = decode(open_image(READ[name]))
    assert image.mode == "RGB" and image.width and image.height


async def test_a_service_refuses_each_by_its_field_and_serves_on(folder: Path) -> None:
    async with run_service(folder, say([70]), **SEES) as service:
        for name, data in SMALL_AND_LARGE.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await service.generate(prompt={"text": "<image>", "media": [{"data": data}]})
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, name
            (violation,) = details_of(caught.value)["BadRequest"].field_violations
            assert violation.field.startswith("prompt.media"), name
        for name, data in READ.items():
            messages = await service.generate(prompt={"text": "<image>", "media": [{"data": data}]})
            assert messages[-1].usage.image_tokens == 16, name
        many = [{"data": READ["8,000 x 8,000"]}] * 2
        with pytest.raises(grpc.aio.AioRpcError, match="pixels in all") as caught:
            await service.generate(prompt={"text": "<image><image>", "media": many})
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "prompt.media[1]"
