"""Reads the body of POST /v1/messages, Anthropic's form of a conversation.

The blocks of a message become messages of a chat: results of tools are blocks of the user's message there and
messages of their own here.
"""

import json
from collections.abc import Mapping
from typing import Any

from frontend.errors import InvalidRequest, Unsupported
from frontend.field_names import Names
from frontend.templates.chat_template import ChatTemplate
from frontend.validation.requests import MAX_PARTS
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.chat import put_effort, put_format, read_template_kwargs
from pagewire_openai.requests.fields import (
    EXTENSIONS,
    Field,
    Table,
    clipped,
    given,
    list_of,
    object_schema,
    one_of,
    read_fields,
    read_object,
    read_texts,
)
from pagewire_openai.requests.tools import put_tool
from pagewire_openai.requests.turns import ASSISTANT, TOOL, Turns

USER = "user"
_BLOCK: Table = {"type": Field(values.text), "cache_control": Field(values.anything)}
_TEXT: Table = {**_BLOCK, "text": Field(values.text), "citations": Field(values.nothing([]))}
_TEXTS = one_of(values.text.schema, list_of(object_schema(_TEXT, "type", "text")))
_SOURCE: Table = {
    "type": Field(values.text),
    "media_type": Field(values.text),
    "data": Field(values.text),
    "url": Field(values.text),
}
_IMAGE: Table = {**_BLOCK, "source": Field(values.json_object, inner=object_schema(_SOURCE, "type"))}
_THINKING: Table = {**_BLOCK, "thinking": Field(values.text), "signature": Field(values.anything)}
_TOOL_USE: Table = {
    **_BLOCK,
    "id": Field(values.text),
    "name": Field(values.text),
    "input": Field(values.json_object),
}
_TOOL_RESULT: Table = {
    **_BLOCK,
    "tool_use_id": Field(values.text),
    "content": Field(values.as_it_is, inner=_TEXTS),
    "is_error": Field(values.boolean),  # templates have no word for it: the content says it
}
_MESSAGE: Table = {
    "role": Field(values.text),
    "content": Field(
        values.as_it_is,
        inner=one_of(
            values.text.schema,
            list_of(
                object_schema(_TEXT, "type", "text"),
                object_schema(_IMAGE, "type", "source"),
                object_schema(_THINKING, "type", "thinking"),
                object_schema(_TOOL_USE, "type", "id", "name", "input"),
                object_schema(_TOOL_RESULT, "type", "tool_use_id"),
            ),
        ),
    ),
}
_TOOL: Table = {
    **_BLOCK,
    "name": Field(values.text),
    "description": Field(values.text),
    "input_schema": Field(values.json_object),
    "strict": Field(values.boolean),
}
_CHOICE: Table = {
    "type": Field(values.text),
    "name": Field(values.text),
    "disable_parallel_tool_use": Field(values.boolean),
}
_MODES = {
    "auto": prompt_pb2.ToolChoice.MODE_AUTO,
    "any": prompt_pb2.ToolChoice.MODE_REQUIRED,
    "none": prompt_pb2.ToolChoice.MODE_NONE,
}
_THOUGHT: Table = {"type": Field(values.text), "budget_tokens": Field(values.count)}
_FORMAT: Table = {"type": Field(values.text), "schema": Field(values.json_object)}
_CONFIG: Table = {
    "effort": Field(values.text),
    "format": Field(values.json_object, inner=object_schema(_FORMAT, "type", "schema")),
}
COUNTED: Table = {
    "model": Field(values.text, "model"),
    "messages": Field(values.as_it_is, inner=list_of(object_schema(_MESSAGE, "role", "content"))),
    "system": Field(values.as_it_is, inner=_TEXTS),
    "tools": Field(values.as_it_is, inner=list_of(object_schema(_TOOL, "name", "input_schema"))),
    "tool_choice": Field(values.json_object, inner=object_schema(_CHOICE, "type")),
    "thinking": Field(values.json_object, inner=object_schema(_THOUGHT, "type")),
    "output_config": Field(values.json_object, inner=object_schema(_CONFIG)),
    "chat_template_kwargs": Field(values.json_object),
    "cache_control": Field(values.anything),
}
"""Fields of /v1/messages/count_tokens. Prefixes are cached whatever cache_control says."""
MESSAGES: Table = {
    **EXTENSIONS,
    **COUNTED,
    "max_tokens": Field(values.count, "stopping.max_tokens"),
    "stop_sequences": Field(values.text_list, "stopping.stop"),
    "temperature": Field(values.number, "sampling.temperature"),
    "top_p": Field(values.number, "sampling.top_p"),
    "seed": Field(values.seed, "sampling.seed"),
    "stream": Field(values.boolean),
    "metadata": Field(values.anything),
    "service_tier": Field(values.nothing("auto", "standard_only")),
}
_CHAT_NAMES = {
    "": "messages",
    ".messages": "messages",
    ".tools": "tools",
    ".tool_choice": "tool_choice",
    ".tool_choice.mode": "tool_choice.type",
    ".tool_choice.function": "tool_choice.name",
    ".parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    ".enable_thinking": "thinking.type",
}
"""Path below the chat -> the field of the body."""
_REFUSAL = "is not served: must be text"


def read_messages(
    body: Mapping[str, Any], names: Names, template: ChatTemplate | None, *, reasons: bool
) -> generation_pb2.GenerateRequest:
    """Returns the request of a message. template, reasons: of the model. Raises InvalidRequest, Unsupported
    with Anthropic's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, MESSAGES, request, names)
    if not request.stopping.HasField("max_tokens"):
        raise InvalidRequest({"max_tokens": "is required"})
    _read_conversation(body, request, names, "prompt", template)
    _read_thinking(body, request, names, template, reasons=reasons)
    return request


def read_counted(
    body: Mapping[str, Any], names: Names, path: str, template: ChatTemplate | None, *, reasons: bool
) -> generation_pb2.GenerateRequest:
    """Returns a request that has the prompt and the model's name, for a count of tokens. path: where the
    caller puts the prompt. Raises InvalidRequest, Unsupported with Anthropic's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, COUNTED, request, names)
    _read_conversation(body, request, names, path, template)
    _read_thinking(body, request, names, template, reasons=reasons)
    return request


def _read_conversation(
    body: Mapping[str, Any],
    request: generation_pb2.GenerateRequest,
    names: Names,
    path: str,
    template: ChatTemplate | None,
) -> None:
    chat, path = request.prompt.chat, f"{path}.chat"
    for inner, name in _CHAT_NAMES.items():
        names[path + inner] = name
    names[path.removesuffix(".chat")] = "messages"
    _read_tools(body, chat, names, path)
    _read_choice(body, chat)
    keeps_reasoning = template is not None and template.features(with_tools=bool(chat.tools)).reasoning
    turns = Turns(chat, names, path)
    if (system := given(body, "system", None)) is not None:
        _put_texts(turns.add("system", "system"), system, "system")
    _Blocks(turns, keeps_reasoning=keeps_reasoning).read(body.get("messages"))
    last = chat.messages[-1]
    if last.role == ASSISTANT:
        if last.tool_calls:
            raise InvalidRequest({"messages": "must go on with a tool_result after a tool_use"})
        chat.continue_final_message = True
    read_template_kwargs(body, chat, names, path)
    _read_config(body, request, names, template)


def _read_tools(body: Mapping[str, Any], chat: prompt_pb2.Chat, names: Names, path: str) -> None:
    tools = given(body, "tools", [])
    if not isinstance(tools, list):
        raise InvalidRequest({"tools": "must be a list"})
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        kind = given(tool, "type", "custom") if isinstance(tool, dict) else "custom"
        if kind != "custom":
            said = f"{clipped(kind)} is not served: " if isinstance(kind, str) else ""
            raise Unsupported({f"{where}.type": f"{said}must be custom"})
        fields = read_object(tool, where, _TOOL, ("name", "input_schema"))
        names[f"{path}.{where}.parameters"] = f"{where}.input_schema"
        put_tool(chat, {**fields, "parameters": fields["input_schema"]})


def _read_choice(body: Mapping[str, Any], chat: prompt_pb2.Chat) -> None:
    choice = read_object(given(body, "tool_choice", {}), "tool_choice", _CHOICE)
    if not choice:
        return
    kind = choice.get("type")
    if kind == "tool":
        if "name" not in choice:
            raise InvalidRequest({"tool_choice.name": "is required"})
        chat.tool_choice.function = choice["name"]
    elif kind in _MODES:
        if "name" in choice:
            raise InvalidRequest({"tool_choice.name": "needs type: tool"})
        if kind != "none" or chat.tools:
            chat.tool_choice.mode = _MODES[kind]
    else:
        raise InvalidRequest({"tool_choice.type": f"must be {', '.join(_MODES)} or tool"})
    if choice.get("disable_parallel_tool_use", False):
        chat.parallel_tool_calls = False


def _read_thinking(
    body: Mapping[str, Any],
    request: generation_pb2.GenerateRequest,
    names: Names,
    template: ChatTemplate | None,
    *,
    reasons: bool,
) -> None:
    """Absent: as the template has it. Raises Unsupported for what model and template cannot do."""
    thinking = read_object(given(body, "thinking", {}), "thinking", _THOUGHT)
    if not thinking or template is None:  # a conversation is refused without a template
        return
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest({"thinking.type": "must be enabled, adaptive or disabled"})
    if (kind == "enabled") != (budget is not None):
        problem = "is required" if kind == "enabled" else "needs type: enabled"
        raise InvalidRequest({"thinking.budget_tokens": problem})
    if template.features(with_tools=bool(request.prompt.chat.tools)).switches:
        request.prompt.chat.enable_thinking = kind != "disabled"
    elif kind == "disabled" and reasons:
        raise Unsupported({"thinking.type": "the model's chat template has no such switch"})
    elif kind == "enabled" and not reasons:
        raise Unsupported({"thinking.type": "the model does not reason"})
    if budget is not None:
        names["reasoning.budget"] = "thinking.budget_tokens"
        request.reasoning.budget = budget


def _read_config(
    body: Mapping[str, Any],
    request: generation_pb2.GenerateRequest,
    names: Names,
    template: ChatTemplate | None,
) -> None:
    config = read_object(given(body, "output_config", {}), "output_config", _CONFIG)
    if "effort" in config:
        put_effort(config["effort"], "output_config.effort", request.prompt.chat, template)
    if "format" in config:
        path = "output_config.format"
        names["structured_output"] = path
        form = read_object(config["format"], path, _FORMAT, ("type", "schema"))
        put_format(form["type"], form["schema"], path, request)


class _Blocks:
    """Puts the blocks of messages into a chat."""

    def __init__(self, turns: Turns, *, keeps_reasoning: bool) -> None:
        """keeps_reasoning: the model's template has a use for the thinking of earlier turns; else it is left
        out."""
        self._turns = turns
        self._keeps_reasoning = keeps_reasoning
        self._text: prompt_pb2.ChatMessage | None = None
        """The message to which the next block belongs if it is text."""

    def read(self, messages: Any) -> None:
        """Reads a list of messages. Raises InvalidRequest, Unsupported."""
        if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_PARTS:
            raise InvalidRequest({"messages": f"must be a list of 1 to {MAX_PARTS} messages"})
        for place, message in enumerate(messages):
            path = f"messages[{place}]"
            fields = read_object(message, path, _MESSAGE, ("role", "content"))
            readers = self._readers(fields["role"], f"{path}.role")
            content, self._text = fields["content"], None
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            if not isinstance(content, list) or not 1 <= len(content) <= MAX_PARTS:
                problem = f"must be a string or a list of 1 to {MAX_PARTS} blocks"
                raise InvalidRequest({f"{path}.content": problem})
            for number, block in enumerate(content):
                where = f"{path}.content[{number}]"
                kind = block.get("type") if isinstance(block, dict) else None
                if not isinstance(kind, str) or kind not in readers:
                    said = f"{clipped(kind)} is not served: " if isinstance(kind, str) else ""
                    raise Unsupported({f"{where}.type": f"{said}must be {', '.join(readers)}"})
                readers[kind](block, where)

    def _readers(self, role: str, path: str) -> Mapping[str, Any]:
        if role == USER:
            return {"text": self._read_text, "image": self._read_image, "tool_result": self._read_result}
        if role == ASSISTANT:
            return {"text": self._read_answer, "thinking": self._read_thinking, "tool_use": self._read_call}
        raise InvalidRequest({path: f"must be {USER} or {ASSISTANT}"})

    def _read_text(self, block: dict[str, Any], path: str) -> None:
        text = read_object(block, path, _TEXT, ("text",))["text"]
        self._text = self._text or self._turns.add(USER, path)
        self._text.content.add(text=text)

    def _read_image(self, block: dict[str, Any], path: str) -> None:
        source = read_object(block, path, _IMAGE, ("source",))["source"]
        uri, name = _uri_of(source, f"{path}.source")
        self._text = self._text or self._turns.add(USER, path)
        self._turns.add_image(self._text, uri, name)

    def _read_result(self, block: dict[str, Any], path: str) -> None:
        fields = read_object(block, path, _TOOL_RESULT, ("tool_use_id",))
        message, self._text = self._turns.add(TOOL, path), None
        message.tool_call_id = fields["tool_use_id"]
        _put_texts(message, fields.get("content", ""), f"{path}.content")

    def _read_answer(self, block: dict[str, Any], path: str) -> None:
        text = read_object(block, path, _TEXT, ("text",))["text"]
        self._text = self._text or self._turns.turn_for("content", path)
        self._text.content.add(text=text)

    def _read_thinking(self, block: dict[str, Any], path: str) -> None:
        text = read_object(block, path, _THINKING, ("thinking",))["thinking"]
        self._text = None
        if self._keeps_reasoning and text:
            self._turns.turn_for("reasoning", path).reasoning = text

    def _read_call(self, block: dict[str, Any], path: str) -> None:
        fields = read_object(block, path, _TOOL_USE, ("id", "name", "input"))
        self._text = None
        calls = self._turns.turn_for("tool_calls", path).tool_calls
        calls.add(id=fields["id"], name=fields["name"], arguments=json.dumps(fields["input"]))


def _uri_of(value: Any, path: str) -> tuple[str, str]:
    """Returns the URI of an image, and the path of the field that it is in. Raises InvalidRequest."""
    source = read_object(value, path, _SOURCE, ("type",))
    if source["type"] == "url":
        return source.get("url", ""), f"{path}.url"
    if source["type"] != "base64":
        raise Unsupported({f"{path}.type": "must be base64 or url"})
    return f"data:{source.get('media_type', '')};base64,{source.get('data', '')}", f"{path}.data"


def _put_texts(message: prompt_pb2.ChatMessage, content: Any, path: str) -> None:
    for text in read_texts(content, path, _TEXT, ("text",), _REFUSAL):
        message.content.add(text=text)
