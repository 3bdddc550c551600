"""Reads the body of POST /v1/responses.

The items of its `input` become messages of a chat: an assistant's turn is several items there (reasoning,
message, function calls) and one message here.
"""

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
    RESPONSE_STREAM_OPTIONS,
    SAMPLING,
    Field,
    Table,
    ask_for_logprobs,
    clipped,
    given,
    list_of,
    object_schema,
    one_of,
    read_fields,
    read_object,
    read_parts,
    read_texts,
)
from pagewire_openai.requests.images import DETAIL
from pagewire_openai.requests.structured import STRUCTURED, read_structured
from pagewire_openai.requests.tools import FLAT, read_flat_tools
from pagewire_openai.requests.turns import ASSISTANT, TOOL, Turns

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
"""The second one without effect: reasoning comes in plain text, and goes back so."""
_STORED = values.refused("nothing is stored here: send the items of earlier turns in input")

_REASONING: Table = {
    "effort": Field(values.text),
    "summary": Field(values.nothing("auto")),
    "generate_summary": Field(values.nothing("auto")),
}
_CHAT_NAMES = {
    "": "input",
    ".messages": "input",
    ".tools": "tools",
    ".tool_choice": "tool_choice",
    ".tool_choice.mode": "tool_choice",
    ".tool_choice.function": "tool_choice.name",
}
"""Path below the chat -> the field of the body."""
_FORMAT: Table = {
    "type": Field(values.text),
    "name": Field(values.text),
    "description": Field(values.text),
    "schema": Field(values.json_object),
    "strict": Field(values.boolean),
}
_OF_ITEMS: Table = {
    "type": Field(values.text),
    "id": Field(values.anything),
    "status": Field(values.anything),
}
_PART: Table = {
    "type": Field(values.text),
    "text": Field(values.text),
    "annotations": Field(values.anything),
    "logprobs": Field(values.anything),
    "image_url": Field(values.text),
    "detail": DETAIL,
    "file_id": Field(values.refused("is not served: send the image in image_url")),
}
_PARTS = one_of(values.text.schema, list_of(object_schema(_PART, "type")))
_MESSAGE_ITEM: Table = {
    **_OF_ITEMS,
    "role": Field(values.text),
    "content": Field(values.as_it_is, inner=_PARTS),
    "phase": Field(values.anything),
}
_REASONING_ITEM: Table = {
    **_OF_ITEMS,
    "summary": Field(values.anything),
    "content": Field(values.as_it_is, inner=_PARTS),
    "encrypted_content": Field(values.refused("is of another server: it cannot be read here")),
}
_CALL_ITEM: Table = {
    **_OF_ITEMS,
    "call_id": Field(values.text),
    "name": Field(values.text),
    "arguments": Field(values.text),
}
_OUTPUT_ITEM: Table = {
    **_OF_ITEMS,
    "call_id": Field(values.text),
    "output": Field(values.as_it_is, inner=_PARTS),
}
_TEXT: Table = {
    "format": Field(values.json_object, inner=object_schema(_FORMAT, "type")),
    "verbosity": Field(values.nothing("medium")),
}
_TEXTS = ("input_text", "output_text", "reasoning_text")
_READ = {**dict.fromkeys(_TEXTS, "text"), "input_image": "image_url"}
"""Type of a part -> its field."""
RESPONSE: Table = {
    **SAMPLING,
    **EXTENSIONS,
    **STRUCTURED,
    **FLAT,
    "input": Field(
        values.anything,
        inner=one_of(
            values.text.schema,
            list_of(
                object_schema(_MESSAGE_ITEM, "role", "content"),
                object_schema(_REASONING_ITEM, "type"),
                object_schema(_CALL_ITEM, "type", "call_id", "name", "arguments"),
                object_schema(_OUTPUT_ITEM, "type", "call_id", "output"),
            ),
        ),
    ),
    "stream_options": Field(values.json_object, inner=object_schema(RESPONSE_STREAM_OPTIONS)),
    "instructions": Field(values.text),
    "max_output_tokens": Field(values.count, "stopping.max_tokens"),
    "text": Field(values.json_object, inner=object_schema(_TEXT)),
    "reasoning": Field(values.json_object, inner=object_schema(_REASONING)),
    "parallel_tool_calls": Field(values.boolean, "prompt.chat.parallel_tool_calls"),
    "top_logprobs": Field(values.count),
    "include": Field(values.texts),
    "metadata": Field(values.text_map),
    "user": Field(values.text),
    "safety_identifier": Field(values.text),
    "n": Field(values.nothing(1)),
    "store": Field(values.nothing(False)),
    "previous_response_id": Field(_STORED),
    "conversation": Field(_STORED),
    "prompt": Field(_STORED),
    "background": Field(values.nothing(False)),
    "truncation": Field(values.nothing("disabled")),
    "prompt_cache_retention": Field(values.nothing("in_memory")),
    "thinking_token_budget": Field(values.count, "reasoning.budget"),
    "chat_template_kwargs": Field(values.json_object),
}


def read_response(
    body: Mapping[str, Any], names: Names, template: ChatTemplate | None
) -> generation_pb2.GenerateRequest:
    """Returns the request of a response. template: the model's. Raises InvalidRequest, Unsupported with
    OpenAI's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, RESPONSE, request, names)
    chat = request.prompt.chat
    for path, name in _CHAT_NAMES.items():
        names[f"prompt.chat{path}"] = name
    names["prompt"] = "input"
    read_flat_tools(body, chat)
    keeps_reasoning = template is not None and template.features(with_tools=bool(chat.tools)).reasoning
    items = ConversationItems(chat, names, "prompt.chat", keeps_reasoning=keeps_reasoning)
    if (instructions := given(body, "instructions", None)) is not None:
        items.put_instructions(instructions)
    items.read(body.get("input"))
    read_template_kwargs(body, chat, names, "prompt.chat")
    reasoning = read_object(given(body, "reasoning", {}), "reasoning", _REASONING)
    if "effort" in reasoning:
        put_effort(reasoning["effort"], "reasoning.effort", chat, template)
    _read_format(body, request, names)
    read_structured(body, request, names)
    _read_logprobs(body, request, names)
    return request


def _read_format(body: Mapping[str, Any], request: generation_pb2.GenerateRequest, names: Names) -> None:
    text = read_object(given(body, "text", {}), "text", _TEXT)
    if "format" not in text:
        return
    names["structured_output"] = "text.format"
    form = read_object(text["format"], "text.format", _FORMAT)
    if form.get("type") == "json_schema" and "schema" not in form:
        raise InvalidRequest({"text.format.schema": "is required"})
    put_format(form.get("type"), form.get("schema"), "text.format", request)


def _read_logprobs(body: Mapping[str, Any], request: generation_pb2.GenerateRequest, names: Names) -> None:
    included = values.texts(given(body, "include", []))
    for name in included:
        if name not in _INCLUDABLE:
            raise InvalidRequest({"include": f"must be among {', '.join(_INCLUDABLE)}"})
    top = given(body, "top_logprobs", None)
    if LOGPROBS not in included:
        if top:
            raise InvalidRequest({"top_logprobs": f"needs {LOGPROBS} in include"})
        return
    ask_for_logprobs(request, top, names, name="top_logprobs", top_name="top_logprobs")


class ConversationItems:
    """Puts items into a chat, in order."""

    def __init__(self, chat: prompt_pb2.Chat, names: Names, path: str, *, keeps_reasoning: bool) -> None:
        """path: of the chat in the request. keeps_reasoning: the model's template has a use for the reasoning
        of earlier turns; else it is left out."""
        self._turns = Turns(chat, names, path)
        self._keeps_reasoning = keeps_reasoning

    def put_instructions(self, text: str) -> None:
        """Begins the conversation with a system message."""
        self._turns.add("system", "instructions").content.add(text=text)

    def read(self, content: Any) -> None:
        """Reads a string, or a list of items. Raises InvalidRequest, Unsupported."""
        if isinstance(content, str):
            content = [{"role": "user", "content": content}]
        if not isinstance(content, list) or not 1 <= len(content) <= MAX_PARTS:
            raise InvalidRequest({"input": f"must be a string or a list of 1 to {MAX_PARTS} items"})
        readers = {
            "message": self._read_message,
            "reasoning": self._read_reasoning,
            "function_call": self._read_call,
            "function_call_output": self._read_output,
        }
        for place, item in enumerate(content):
            path = f"input[{place}]"
            if not isinstance(item, dict):
                raise InvalidRequest({path: "must be an object"})
            kind = item.get("type") or "message"
            if not isinstance(kind, str) or kind not in readers:
                said = f"{clipped(kind)} is not served: " if isinstance(kind, str) else ""
                raise Unsupported({f"{path}.type": f"{said}must be {', '.join(readers)}"})
            readers[kind](item, path)

    def _read_message(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _MESSAGE_ITEM, ("role", "content"))
        role = fields["role"]
        message = self._turns.turn_for("content", path) if role == ASSISTANT else self._turns.add(role, path)
        self._put_parts(message, fields["content"], f"{path}.content")

    def _read_reasoning(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _REASONING_ITEM)
        content = fields.get("content", [])
        texts = read_texts(content, f"{path}.content", _PART, _TEXTS, "is not served")
        if self._keeps_reasoning and texts:
            self._turns.turn_for("reasoning", path).reasoning = "".join(texts)

    def _read_call(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _CALL_ITEM, ("call_id", "name", "arguments"))
        message = self._turns.turn_for("tool_calls", path)
        message.tool_calls.add(id=fields["call_id"], name=fields["name"], arguments=fields["arguments"])

    def _read_output(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _OUTPUT_ITEM, ("call_id", "output"))
        message = self._turns.add(TOOL, path)
        message.tool_call_id = fields["call_id"]
        self._put_parts(message, fields["output"], f"{path}.output")

    def _put_parts(self, message: prompt_pb2.ChatMessage, content: Any, path: str) -> None:
        for field, value, where in read_parts(content, path, _PART, _READ, "is not served"):
            if field == "text":
                message.content.add(text=value)
            else:
                self._turns.add_image(message, value, f"{where}.{field}")
