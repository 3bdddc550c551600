"""Images in prompts."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagewire.v1 import prompt_pb2

FIELD = "images"
"""Names the images of a prompt that is text or token ids, beside PROMPT."""
PROMPT = "prompt"
_SCHEMES = ("data:", "http:", "https:")


class Medium:
    """An image or a sound of a prompt."""

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        """source: path of a file, which is read at once; its bytes; or a URI: `data:`, or the URL of a host
        that the server fetches from (`--media-hosts`). Raises OSError."""
        if isinstance(source, str) and source.lower().startswith(_SCHEMES):
            self._media = prompt_pb2.Media(uri=source)
        elif isinstance(source, bytes):
            self._media = prompt_pb2.Media(data=source)
        else:
            self._media = prompt_pb2.Media(data=Path(source).read_bytes())

    def message(self) -> prompt_pb2.Media:
        """Returns the message of the medium."""
        return self._media


class Image(Medium):
    """An image of a prompt: a part of a message, or one of the images of a text. The file is PNG, JPEG, WebP
    or GIF.

    >>> client.chat([{"role": "user", "content": [pagewire.Image("cat.png"), "What is this?"]}])
    >>> client.generate({"prompt": "<image>\\nA photo of", "images": [pagewire.Image("cat.png")]})
    """


class Video(Image):
    """A video of a prompt, wherever an image may be, of models that see videos.

    >>> video = pagewire.Video(["0.png", "1.png", "2.png", "3.png"], [0, 0.5, 1, 1.5])
    >>> client.chat([{"role": "user", "content": [video, "What happens?"]}])
    """

    def __init__(self, frames: Sequence[str | os.PathLike[str] | bytes], seconds: Sequence[float]) -> None:
        """frames: those that the model sees, oldest first: paths of files as of images of one size, which are
        read at once, or their bytes. seconds: when each is seen, from the beginning of the video. Raises
        OSError."""
        files = [each if isinstance(each, bytes) else Path(each).read_bytes() for each in frames]
        self._media = prompt_pb2.Media(frames=prompt_pb2.VideoFrames(files=files, seconds=seconds))


def to_media(media: Sequence[Medium], kind: type[Medium] = Image) -> list[prompt_pb2.Media]:
    """Returns the messages of media of one kind. Raises TypeError for another value."""
    for each in media:
        if not isinstance(each, kind):
            name = kind.__name__
            raise TypeError(f"only pagewire.{name} is one, as {name}(path), and not {type(each).__name__}")
    return [each.message() for each in media]


def name_files(prompt: prompt_pb2.Prompt) -> None:
    """Puts digests in place of the files of a prompt, which a server may have from the stream that broke."""
    parts = [part for message in prompt.chat.messages for part in message.content if part.HasField("media")]
    for media in (*prompt.media, *(part.media for part in parts)):
        if media.data:
            media.sha256 = hashlib.sha256(media.data).digest()  # which clears data


def to_part(part: str | Medium | Mapping[str, Any]) -> prompt_pb2.ContentPart | None:
    """Returns a text, a medium, or OpenAI's `image_url` or `input_audio` as a part of a message; None: it is
    another one."""
    if isinstance(part, str):
        return prompt_pb2.ContentPart(text=part)
    if isinstance(part, Medium):
        return prompt_pb2.ContentPart(media=part.message())
    if part.get("type") == "image_url":
        url = part["image_url"]
        uri = url["url"] if isinstance(url, Mapping) else url
        return prompt_pb2.ContentPart(media=prompt_pb2.Media(uri=uri))
    if part.get("type") == "input_audio":
        uri = f"data:audio;base64,{part['input_audio']['data']}"
        return prompt_pb2.ContentPart(media=prompt_pb2.Media(uri=uri))
    return None
