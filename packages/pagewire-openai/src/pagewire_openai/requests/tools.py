"""Reads `tools` and `tool_choice`, in the shapes of chat completions (a function inside each tool) and of
responses (a tool is its function)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from frontend.errors import InvalidRequest, Unsupported
from pagewire.v1 import prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.fields import (
    Field,
    Table,
    clipped,
    given,
    list_of,
    object_schema,
    one_of,
    read_object,
)
from pagewire_openai.requests.values import Json

_FUNCTION: Table = {
    "name": Field(values.text),
    "description": Field(values.text),
    "parameters": Field(values.json_object),
    "strict": Field(values.boolean),
}
_NAMED: Table = {"name": Field(values.text)}
_TYPED: Table = {"type": Field(values.text)}
_TOOL: Table = {
    **_TYPED,
    "function": Field(values.json_object, inner=object_schema(_FUNCTION, "name")),
    "cache_control": Field(values.anything),
}
_CHOSEN: Table = {**_TYPED, "function": Field(values.json_object, inner=object_schema(_NAMED, "name"))}
_MODES = {
    "none": prompt_pb2.ToolChoice.MODE_NONE,
    "auto": prompt_pb2.ToolChoice.MODE_AUTO,
    "required": prompt_pb2.ToolChoice.MODE_REQUIRED,
}
_MODE: Json = {"enum": list(_MODES)}
NESTED: Table = {
    "tools": Field(values.anything, inner=list_of(object_schema(_TOOL, "type", "function"))),
    "tool_choice": Field(values.anything, inner=one_of(_MODE, object_schema(_CHOSEN, "type", "function"))),
}
"""The fields of a chat completion."""
FLAT: Table = {
    "tools": Field(values.anything, inner=list_of(object_schema({**_TYPED, **_FUNCTION}, "type", "name"))),
    "tool_choice": Field(
        values.anything, inner=one_of(_MODE, object_schema({**_TYPED, **_NAMED}, "type", "name"))
    ),
}
"""The fields of a response."""


def read_nested_tools(body: Mapping[str, Any], chat: prompt_pb2.Chat) -> None:
    """Reads the tools of a chat completion. Raises InvalidRequest, Unsupported."""
    for path, tool in _tools(body):
        put_tool(chat, read_inner(tool, path, _TOOL, _FUNCTION)[1])
    if (choice := _read_mode(body, chat)) is not None:
        _, named = read_inner(choice, "tool_choice", _CHOSEN, _NAMED)
        chat.tool_choice.function = named.get("name", "")


def read_inner(value: Any, path: str, table: Table, inner: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of an object of type `function`, and those of its `function`. Raises InvalidRequest,
    Unsupported."""
    outer = read_object(value, path, table)
    if outer.get("type", "function") != "function":
        raise Unsupported({f"{path}.type": "must be function"})
    return outer, read_object(outer.get("function"), f"{path}.function", inner)


def read_flat_tools(body: Mapping[str, Any], chat: prompt_pb2.Chat) -> None:
    """Reads the tools of a response. Raises InvalidRequest, Unsupported."""
    for path, tool in _tools(body):
        put_tool(chat, read_object(tool, path, {**_TYPED, **_FUNCTION}))
    if (choice := _read_mode(body, chat)) is not None:
        if choice.get("type") != "function":
            raise Unsupported({"tool_choice.type": "must be function"})
        chat.tool_choice.function = read_object(choice, "tool_choice", {**_TYPED, **_NAMED}).get("name", "")


def _tools(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each tool with its path. Raises InvalidRequest, Unsupported: tools that a server runs itself."""
    tools = given(body, "tools", [])
    if not isinstance(tools, list):
        raise InvalidRequest({"tools": "must be a list"})
    for place, tool in enumerate(tools):
        path = f"tools[{place}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            said = f"{clipped(kind)} is not served: " if isinstance(kind, str) else ""
            raise Unsupported({f"{path}.type": f"{said}must be function"})
        yield path, tool


def put_tool(chat: prompt_pb2.Chat, function: Mapping[str, Any]) -> None:
    """Adds a tool. function: its name, description, parameters and strict, as far as they are given."""
    chat.tools.add(
        name=function.get("name", ""),
        description=function.get("description", ""),
        parameters=json.dumps(function.get("parameters", {"type": "object", "properties": {}})),
        strict=function.get("strict", False),
    )


def _read_mode(body: Mapping[str, Any], chat: prompt_pb2.Chat) -> dict[str, Any] | None:
    """Reads a choice that is a word; returns one that names a function. Raises InvalidRequest."""
    choice = given(body, "tool_choice", None)
    if isinstance(choice, dict):
        return choice
    if isinstance(choice, str) and choice in _MODES:
        if choice != "none" or chat.tools:
            chat.tool_choice.mode = _MODES[choice]
    elif choice is not None:
        raise InvalidRequest({"tool_choice": "must be none, auto, required or a function"})
    return None
