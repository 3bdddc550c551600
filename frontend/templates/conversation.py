"""What a chat template sees of a conversation: messages, tools and variables as plain Python values."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

from frontend.errors import InvalidRequest, Unsupported
from frontend.templates.taint import tainted
from frontend.validation.json_objects import read_object
from pagewire.v1 import prompt_pb2

NOT_USED = "the model's chat template does not use it"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn thinking on and off."""
SYSTEM, DEVELOPER, ASSISTANT, TOOL = "system", "developer", "assistant", "tool"
"""OpenAI's newer name of the first one is the second, which few templates know."""
EFFORT = "reasoning_effort"
"""Variable by which templates say how much to think."""

_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    }
)

_ROLES = frozenset({SYSTEM, DEVELOPER, ASSISTANT, "function", "ipython", "model", TOOL, "user"})
"""Roles of which a template may make control tokens, as `'<|' + role + '|>'` does; others are text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A Chat message, as templates see it."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final_message: bool
    variables: Mapping[str, Any]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class TemplateFeatures:
    """What a template does with a conversation, read off its source."""

    reserved: Collection[str]
    """Names that requests cannot set."""
    reasoning: bool
    tools: bool
    tool_calls: bool
    switches: tuple[str, ...]
    """The thinking switches that it reads."""
    effort: bool
    """It reads EFFORT."""
    developer: bool
    """It has a use for the role DEVELOPER; to other templates its messages are of SYSTEM."""


def features_of(source: str, variables: Collection[str], reserved: Iterable[str]) -> TemplateFeatures:
    """Returns a template's features. variables: the names that it reads and does not set. reserved: names
    that requests cannot set, besides those of every template."""
    return TemplateFeatures(
        reserved=_RESERVED.union(reserved),
        reasoning=any(name in source for name in ("reasoning_content", "thinking")),
        tools="tools" in variables,
        tool_calls="tool_calls" in source,
        switches=tuple(name for name in THINKING_SWITCHES if name in variables),
        effort=EFFORT in variables,
        developer=DEVELOPER in source,
    )


def read_conversation(
    chat: prompt_pb2.Chat,
    path: str,
    features: TemplateFeatures,
    *,
    arguments_are_text: bool,
    as_parts: bool = False,
    media_as_parts: str = "",
    placeholder: str = "",
) -> Conversation:
    """Returns the conversation of a validated Chat, with its text tainted (frontend.templates.taint). Raises
    InvalidRequest and Unsupported, with paths below `path`.

    arguments_are_text: the template takes the arguments of calls as JSON text, not as an object. as_parts: it
    takes content as a list of parts, not as text. media_as_parts: so it does of a message that has media,
    which are parts of this type; empty: it does not. placeholder: written before the text of a message for
    each of its media, where these are no parts.
    """
    reader = _Reader(features, arguments_are_text, as_parts, media_as_parts, placeholder)
    messages = [
        reader.message(message, f"{path}.messages[{place}]") for place, message in enumerate(chat.messages)
    ]
    opens = chat.continue_final_message
    asked = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not opens
    return Conversation(messages, asked, opens, _variables(chat, path, features), reader.tools(chat, path))


def media_part(part_type: str) -> dict[str, Any]:
    """Returns what a template gets for an image or a sound. Some look for a field that has it."""
    return {"type": part_type} | ({"audio": ""} if part_type == "audio" else {})


def offers_tools(chat: prompt_pb2.Chat) -> bool:
    """True when the model is told of tools: there are some, and the choice is not to call none."""
    return bool(chat.tools) and chat.tool_choice.mode != prompt_pb2.ToolChoice.MODE_NONE


def _variables(chat: prompt_pb2.Chat, path: str, features: TemplateFeatures) -> dict[str, Any]:
    variables: dict[str, Any] = {
        str(name): _tainted(value) for name, value in _plain(chat.template_kwargs).items()
    }
    for name in variables.keys() & features.reserved:
        raise InvalidRequest({f"{path}.template_kwargs.{name}": "is a name that the server sets"})
    if chat.HasField("enable_thinking"):
        if not features.switches:
            raise Unsupported({f"{path}.enable_thinking": "the model's chat template has no such switch"})
        for name in variables.keys() & set(THINKING_SWITCHES):
            raise InvalidRequest({f"{path}.template_kwargs.{name}": "is set by enable_thinking already"})
        variables.update(dict.fromkeys(features.switches, chat.enable_thinking))
    return variables


class _Reader:
    def __init__(
        self,
        features: TemplateFeatures,
        arguments_are_text: bool,
        as_parts: bool,
        media_as_parts: str,
        placeholder: str,
    ) -> None:
        self._features = features
        self._arguments_are_text = arguments_are_text
        self._as_parts, self._media_as_parts = as_parts, media_as_parts
        self._placeholder = placeholder
        self._called: dict[str, str] = {}
        """Names of the functions that were called so far, by the ids of the calls."""

    def message(self, message: prompt_pb2.ChatMessage, path: str) -> dict[str, Any]:
        role = message.role
        if role == DEVELOPER and not self._features.developer:
            role = SYSTEM
        read: dict[str, Any] = {
            "role": role if role in _ROLES else tainted(role),
            "content": self._content(message.content),
        }
        # OpenAI's tool messages have no name, and many templates print one.
        name = message.name or (self._called.get(message.tool_call_id, "") if role == TOOL else "")
        if name:
            read["name"] = tainted(name)
        if message.tool_call_id:
            read["tool_call_id"] = tainted(message.tool_call_id)
        if message.reasoning:
            if not self._features.reasoning:
                raise Unsupported({f"{path}.reasoning": NOT_USED})
            read["reasoning_content"] = read["thinking"] = tainted(message.reasoning)
        if message.tool_calls:
            if not self._features.tool_calls:
                raise Unsupported({f"{path}.tool_calls": NOT_USED})
            read["tool_calls"] = [
                self._call(call, f"{path}.tool_calls[{place}]")
                for place, call in enumerate(message.tool_calls)
            ]
        return read

    def _content(self, parts: Sequence[prompt_pb2.ContentPart]) -> "str | list[dict[str, Any]]":
        count = sum(part.HasField("media") for part in parts)
        if self._media_as_parts if count else self._as_parts:
            return [
                media_part("video" if part.media.HasField("frames") else self._media_as_parts)
                if part.HasField("media")
                else {"type": "text", "text": tainted(part.text)}
                for part in parts
            ] or [{"type": "text", "text": ""}]
        text = tainted("".join(part.text for part in parts))
        text = f"{self._placeholder}\n" * count + text if count else text
        return [{"type": "text", "text": text}] if self._as_parts else text

    def _call(self, call: prompt_pb2.ToolCall, path: str) -> dict[str, Any]:
        self._called[call.id] = call.name
        arguments = read_object(call.arguments or "{}", f"{path}.arguments")
        given: Any = _tainted(arguments)
        if self._arguments_are_text:
            given = tainted(call.arguments or "{}")
        function = {"name": tainted(call.name), "arguments": given}
        return {"id": tainted(call.id), "type": "function", "function": function}

    def tools(self, chat: prompt_pb2.Chat, path: str) -> list[dict[str, Any]] | None:
        if not offers_tools(chat):
            return None
        if not self._features.tools:
            raise Unsupported({f"{path}.tools": NOT_USED})
        return [self._tool(tool, f"{path}.tools[{place}]") for place, tool in enumerate(chat.tools)]

    def _tool(self, tool: prompt_pb2.Tool, path: str) -> dict[str, Any]:
        schema = read_object(tool.parameters or '{"type":"object","properties":{}}', f"{path}.parameters")
        function = {
            "name": tainted(tool.name),
            "description": tainted(tool.description),
            "parameters": _tainted(schema),
        }
        return {"type": "function", "function": function}


_SURROGATE = re.compile("[\ud800-\udfff]")


def _tainted(value: Any) -> Any:
    """Taints all strings of a JSON value. An unpaired surrogate, which JSON can spell and UTF-8 cannot,
    becomes U+FFFD."""
    if isinstance(value, str):
        return tainted(_SURROGATE.sub("\ufffd", value))
    if isinstance(value, list):
        return [_tainted(item) for item in value]
    if isinstance(value, dict):
        return {_tainted(name): _tainted(item) for name, item in value.items()}
    return value


def _plain(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Returns a Struct's Python values. Fields have no order, so they are sorted: the same request always
    yields the same prompt. Numbers are doubles; whole ones become integers."""
    return {name: _plain_value(struct.fields[name]) for name in sorted(struct.fields)}


def _plain_value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() and abs(number) < 2**53 else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _plain(value.struct_value)
        case "list_value":
            return [_plain_value(item) for item in value.list_value.values]
        case _:
            return None
