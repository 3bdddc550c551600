"""Sounds in messages."""

from typing import Any

from pagewire_openai.requests import values
from pagewire_openai.requests.fields import Field, Table, object_schema, read_object

_SOUND: Table = {"data": Field(values.text), "format": Field(values.text)}
INPUT_AUDIO = Field(values.json_object, inner=object_schema(_SOUND, "data"))
"""The sound of a part of /v1/chat/completions. The file itself says what it is, not `format`."""

_URL: Table = {"url": Field(values.text)}
AUDIO_URL = Field(values.json_object, inner=object_schema(_URL, "url"))
"""The same, as clients of vLLM send it."""


def read_audio_url(value: Any, path: str) -> tuple[str, str]:
    """Returns the URI in an `audio_url`, and the path of its field. Raises InvalidRequest."""
    return read_object(value, path, _URL, ("url",))["url"], f"{path}.url"


def read_input_audio(value: Any, path: str) -> tuple[str, str]:
    """Returns the sound in an `input_audio` as a URI, and the path of its field. Raises InvalidRequest."""
    data = read_object(value, path, _SOUND, ("data",))["data"]
    is_uri = data[:5].lower() == "data:"  # as some clients send it
    return data if is_uri else f"data:audio;base64,{data}", f"{path}.data"
