"""Sounds in messages."""

from typing import Any

from pagewire_openai.requests import values
from pagewire_openai.requests.fields import Field, Table, object_schema, read_object

_SOUND: Table = {"data": Field(values.text), "format": Field(values.text)}
INPUT_AUDIO = Field(values.json_object, inner=object_schema(_SOUND, "data"))
"""The sound of a part of /v1/chat/completions. The file itself says what it is, not `format`."""


def read_input_audio(value: Any, path: str) -> tuple[str, str]:
    """Returns the sound in an `input_audio` as a URI, and the path of its field. Raises InvalidRequest."""
    data = read_object(value, path, _SOUND, ("data",))["data"]
    return f"data:audio;base64,{data}", f"{path}.data"
