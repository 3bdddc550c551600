"""Images in the three forms of a conversation."""

import base64
from pathlib import Path

import openai
import pytest

from pagewire.internal.v1 import engine_pb2
from pagewire_openai.requests.messages import read_messages
from pagewire_openai.requests.response import read_response
from tests.frontend.fakes import encode, say
from tests.frontend.media.pictures import file_of, picture
from tests.patience import soon
from tests.vision_models import make_vision_model

PNG = file_of(picture(90, 60))
TEXT = base64.b64encode(PNG).decode()
URI = f"data:image/png;base64,{TEXT}"
SEES = {"engine_options": {"media_kinds": [engine_pb2.MEDIA_KIND_IMAGE]}, "script": say([70])}


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("llava"), "llava")


def conversations(uri: str = URI) -> dict[str, dict[str, object]]:
    """Returns the same conversation in each form, by path."""
    data = uri.partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    if not uri.startswith("data:"):
        source = {"type": "url", "url": uri}
    chat = [{"type": "image_url", "image_url": {"url": uri, "detail": "low"}}, {"type": "text", "text": "a"}]
    response = [{"type": "input_image", "image_url": uri, "detail": "auto"}]
    response += [{"type": "input_text", "text": "a"}]
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "a"}]
    return {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": chat}]},
        "/v1/responses": {"input": [{"role": "user", "content": response}]},
        "/v1/messages": {"messages": [{"role": "user", "content": blocks}], "max_tokens": 1},
    }


FIELDS = {
    "/v1/chat/completions": "messages[0].content[0].image_url.url",
    "/v1/responses": "input[0].content[0].image_url",
    "/v1/messages": "messages[0].content[0].source.url",
}


async def test_all_forms_send_the_same_image(run_api, llava: Path) -> None:
    async with run_api(model_path=llava, **SEES) as api:
        sent = []
        for path, body in conversations().items():
            answer = await api.post(path, model="fake", **body)
            assert answer.status_code == 200, answer.text
            sent.append(await soon(api.service.engine.requests.get()))
        assert len({bytes(each.media[0].digest) for each in sent}) == 1
        assert len({each.prompt_token_ids for each in sent}) == 1


async def test_the_openai_package_sends_an_image(run_api, llava: Path) -> None:
    body = conversations()["/v1/chat/completions"]
    async with run_api(model_path=llava, **SEES) as api:
        answer = await api.openai.chat.completions.create(model="fake", **body)
        assert answer.usage.prompt_tokens_details.to_dict() == {"cached_tokens": 0, "image_tokens": 16}
        counted = await api.post("/tokenize", **body)
        assert counted.json()["count"] == answer.usage.prompt_tokens


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("uri", ["https://a.b/cat.png", "file:///etc/passwd"])
async def test_a_uri_that_is_not_fetched_is_refused_by_its_field(
    run_api, llava: Path, path: str, uri: str
) -> None:
    async with run_api(model_path=llava, **SEES) as api:
        answer = await api.post(path, model="fake", **conversations(uri)[path])
        assert answer.status_code == 400 and "fetching is not served" in answer.text
        assert FIELDS[path] in answer.text


@pytest.mark.parametrize("path", FIELDS)
async def test_a_damaged_image_is_refused_by_its_field(run_api, llava: Path, path: str) -> None:
    async with run_api(model_path=llava, **SEES) as api:
        uri = f"data:image/png;base64,{base64.b64encode(PNG[:-500]).decode()}"
        answer = await api.post(path, model="fake", **conversations(uri)[path])
        assert answer.status_code == 400 and "damaged" in answer.text
        assert FIELDS[path].replace(".source.url", ".source.data") in answer.text


def test_what_all_images_have_in_common_is_named_by_the_conversation() -> None:
    """A wrong number of them, or too many bytes."""
    bodies = conversations()
    readers = {
        "messages": lambda names: read_messages(bodies["/v1/messages"], names, None, reasons=False),
        "input": lambda names: read_response(bodies["/v1/responses"], names, None),
    }
    for field, read in readers.items():
        names: dict[str, str] = {}
        read(names)
        assert names["prompt.chat.messages"] == field


async def test_a_part_has_the_fields_of_its_type(run_api, llava: Path) -> None:
    """Nothing that a client sends is dropped."""
    url = {"url": URI}
    async with run_api(model_path=llava, **SEES) as api:
        for part, field in (
            ({"type": "text", "text": "a", "image_url": url}, "image_url"),
            ({"type": "image_url", "text": "a", "image_url": url}, "text"),
        ):
            answer = await api.post(
                "/v1/chat/completions", model="fake", messages=[{"role": "user", "content": [part]}]
            )
            assert answer.status_code == 400 and f"messages[0].content[0].{field}" in answer.text


async def test_a_model_that_sees_nothing(run_api) -> None:
    async with run_api(say(encode("a"))) as api:
        with pytest.raises(openai.APIStatusError, match="no encoder for images") as caught:
            body = conversations()["/v1/chat/completions"]
            await api.openai.chat.completions.create(model="fake", **body)
        assert caught.value.param == FIELDS["/v1/chat/completions"]
