"""The files of a request's media: which fields have them, and what is in them."""

import base64
import re
from collections.abc import Iterator, Sequence

from pagewire.v1 import prompt_pb2

Prompts = Sequence[tuple[str, prompt_pb2.Prompt]]
"""Those of a request, with their paths in it."""
_DATA = re.compile(r"data:(?P<parameters>[^,]{0,256}),", re.IGNORECASE)
"""The beginning of a data URI (RFC 2397)."""
MEDIA_FIELDS = IN_PROMPT, IN_CHAT = ".media", ".chat.messages"
"""Ends of the paths of what has media."""
URI_FIELD = ".uri"
"""End of the path of a medium's URI."""
DIGEST_FIELD = ".sha256"
"""End of the path of a medium's digest."""
_BASE64 = ";base64"


def data_of(uri: str) -> bytes | None:
    """Returns the file in a data URI with base64; None: it is none, or not readable."""
    head = _DATA.match(uri)
    if head is None or not head["parameters"].lower().endswith(_BASE64):
        return None
    try:
        return base64.b64decode(uri[head.end() :], validate=True)
    except ValueError:  # also of a character that is not ASCII
        return None


def file_of(media: prompt_pb2.Media) -> bytes:
    """Returns the bytes of a validated medium, which are of no file where it is a video."""
    if media.HasField("frames"):
        return media.frames.SerializeToString(deterministic=True)
    return media.data or data_of(media.uri) or b""


def media_of(prompt: prompt_pb2.Prompt, path: str) -> Iterator[tuple[str, prompt_pb2.Media]]:
    """Yields the media of a prompt in the order of their placeholders, each with its path. path: of the
    prompt."""
    for place, media in enumerate(prompt.media):
        yield f"{path}.media[{place}]", media
    for number, message in enumerate(prompt.chat.messages):
        for place, part in enumerate(message.content):
            if part.HasField("media"):
                yield f"{path}.chat.messages[{number}].content[{place}].media", part.media


def has_media(prompt: prompt_pb2.Prompt) -> bool:
    """Returns whether a prompt has any."""
    return next(media_of(prompt, ""), None) is not None


def field_of(prompt: prompt_pb2.Prompt, path: str) -> str:
    """Returns the path of the field that has the media of a prompt. path: of the prompt."""
    return path + (IN_CHAT if prompt.HasField("chat") else IN_PROMPT)
