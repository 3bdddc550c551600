"""Sounds in prompts and messages."""

from pathlib import Path

import pytest

from pagewire import Audio, Image
from pagewire.v1 import prompt_pb2
from pagewire_client.params import to_prompt

WAV = b"RIFF"


def test_a_sound_is_a_path_bytes_or_a_uri(tmp_path: Path) -> None:
    path = tmp_path / "dog.wav"
    path.write_bytes(WAV)
    for source in (path, str(path), WAV):
        assert Audio(source).message() == prompt_pb2.Media(data=WAV)
    assert Audio("https://a.b/c.wav").message() == prompt_pb2.Media(uri="https://a.b/c.wav")


def test_messages_have_sounds_among_their_parts() -> None:
    parts = [Audio(WAV), "a", {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]
    (message,) = to_prompt([{"role": "user", "content": parts}]).chat.messages
    assert list(message.content) == [
        prompt_pb2.ContentPart(media=prompt_pb2.Media(data=WAV)),
        prompt_pb2.ContentPart(text="a"),
        prompt_pb2.ContentPart(media=prompt_pb2.Media(uri="data:audio;base64,UklGRg==")),
    ]


@pytest.mark.parametrize("prompt", ["a <|AUDIO|>", [1, 2, 3]])
def test_texts_and_ids_have_sounds_beside_them(prompt: object) -> None:
    message = to_prompt({"prompt": prompt, "audio": [Audio(WAV)]})
    assert list(message.media) == [prompt_pb2.Media(data=WAV)]
    with pytest.raises(TypeError, match=r"pagewire\.Audio.*not Image"):
        to_prompt({"prompt": prompt, "audio": [Image(WAV)]})
