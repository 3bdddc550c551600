"""Images in messages, by the fields in which each API has their URIs."""

from typing import Any

from frontend.field_names import Names
from pagewire.v1 import prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import Field, Table, object_schema, read_object

DETAIL = Field(values.nothing("auto", "low", "high"))
"""Changes nothing: the model's image processor says how large an image is."""
_URL: Table = {"url": Field(values.text), "detail": DETAIL}
IMAGE_URL = Field(values.json_object, inner=object_schema(_URL, "url"))
"""The image of a part of /v1/chat/completions."""


def read_image_url(value: Any, path: str) -> tuple[str, str]:
    """Returns the URI in an `image_url`, and the path of its field. Raises InvalidRequest."""
    return read_object(value, path, _URL, ("url",))["url"], f"{path}.url"


def add_medium(message: prompt_pb2.ChatMessage, uri: str, name: str, names: Names, path: str) -> None:
    """Adds an image or a sound to a message. name: the client's field that has it. path: of the message in
    the request."""
    inner = f"{path}.content[{len(message.content)}].media"
    names[inner] = names[f"{inner}.uri"] = name
    message.content.add(media=prompt_pb2.Media(uri=uri))
