"""Images in prompts and messages."""

from pathlib import Path

import pytest

from pagewire import Image
from pagewire.v1 import prompt_pb2
from pagewire_client.params import to_prompt

PNG = b"\x89PNG"


def test_an_image_is_a_path_bytes_or_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    for source in (path, str(path), PNG):
        assert Image(source).message() == prompt_pb2.Media(data=PNG)
    for uri in ("data:image/png;base64,YQ==", "https://a.b/c.png"):
        assert Image(uri).message() == prompt_pb2.Media(uri=uri)
    with pytest.raises(OSError, match="nothing"):
        Image(tmp_path / "nothing.png")


def test_messages_have_images_among_their_parts() -> None:
    uri = "data:image/png;base64,YQ=="
    parts = [Image(PNG), "a", {"type": "text", "text": "b"}]
    parts += [{"type": "image_url", "image_url": {"url": uri}}, {"type": "image_url", "image_url": uri}]
    (message,) = to_prompt([{"role": "user", "content": parts}]).chat.messages
    by_uri = prompt_pb2.ContentPart(media=prompt_pb2.Media(uri=uri))
    assert list(message.content) == [
        prompt_pb2.ContentPart(media=prompt_pb2.Media(data=PNG)),
        prompt_pb2.ContentPart(text="a"),
        prompt_pb2.ContentPart(text="b"),
        by_uri,
        by_uri,
    ]


@pytest.mark.parametrize("prompt", ["a <image>", [1, 2, 3]])
def test_texts_and_ids_have_images_beside_them(prompt: object) -> None:
    message = to_prompt({"prompt": prompt, "images": [Image(PNG), Image(PNG)]})
    assert list(message.media) == [prompt_pb2.Media(data=PNG)] * 2
    message.ClearField("media")
    assert message == to_prompt(prompt)


def test_what_is_no_image() -> None:
    with pytest.raises(TypeError, match=r"pagewire\.Image.*not str"):
        to_prompt({"prompt": "a", "images": ["cat.png"]})
