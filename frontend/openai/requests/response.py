"""Reads the body of POST /v1/responses."""

import json
from collections.abc import Mapping
from typing import Any

from frontend.errors import InvalidRequest
from frontend.openai.requests import values
from frontend.openai.requests.chat import read_template_kwargs
from frontend.openai.requests.fields import (
    EXTENSIONS,
    SAMPLING,
    Field,
    Names,
    Table,
    given,
    read_fields,
    read_object,
)
from frontend.openai.requests.reasoning import put_effort
from frontend.openai.requests.response_input import ConversationItems
from frontend.openai.requests.tools import read_flat_tools
from frontend.templates.chat_template import ChatTemplate
from pagewire.v1 import generation_pb2

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
"""The second one without effect: reasoning comes in plain text, and goes back so."""
_STORED = values.refused("nothing is stored here: send the items of earlier turns in input")

_RESPONSE: Table = {
    "input": Field(values.anything),
    "instructions": Field(values.text),
    "max_output_tokens": Field(values.count, "stopping.max_tokens"),
    "text": Field(values.json_object),
    "reasoning": Field(values.json_object),
    "tools": Field(values.anything),
    "tool_choice": Field(values.anything),
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
_REASONING: Table = {
    "effort": Field(values.text),
    "summary": Field(values.nothing("auto")),
    "generate_summary": Field(values.nothing("auto")),
}
_CHAT_NAMES = {
    "": "input",
    ".tools": "tools",
    ".tool_choice": "tool_choice",
    ".tool_choice.mode": "tool_choice",
    ".tool_choice.function": "tool_choice.name",
}
"""Path below the chat -> the field of the body."""
_TEXT: Table = {"format": Field(values.json_object), "verbosity": Field(values.nothing("medium"))}
_FORMAT: Table = {
    "type": Field(values.text),
    "name": Field(values.text),
    "description": Field(values.text),
    "schema": Field(values.json_object),
    "strict": Field(values.boolean),
}


def read_response(
    body: Mapping[str, Any], names: Names, template: ChatTemplate | None
) -> generation_pb2.GenerateRequest:
    """Returns the request of a response. template: the model's. Raises InvalidRequest, Unsupported with
    OpenAI's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, (SAMPLING, EXTENSIONS, _RESPONSE), request, names)
    chat = request.prompt.chat
    for path, name in _CHAT_NAMES.items():
        names.put(f"prompt.chat{path}", name)
    names.put("prompt", "input")
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
    _read_logprobs(body, request, names)
    return request


def _read_format(body: Mapping[str, Any], request: generation_pb2.GenerateRequest, names: Names) -> None:
    text = read_object(given(body, "text", {}), "text", _TEXT)
    if "format" not in text:
        return
    names.put("structured_output", "text.format")
    form = read_object(text["format"], "text.format", _FORMAT)
    match form.get("type"):
        case "text":
            pass
        case "json_object":
            request.structured_output.json_object = True
        case "json_schema":
            if "schema" not in form:
                raise InvalidRequest({"text.format.schema": "is required"})
            request.structured_output.json_schema = json.dumps(form["schema"])
        case _:
            raise InvalidRequest({"text.format.type": "must be text, json_object or json_schema"})


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
    names.put("output.logprobs", "top_logprobs")
    names.put("output.logprobs.top_n", "top_logprobs")
    request.output.logprobs.SetInParent()
    request.output.token_bytes = request.output.token_ids = True
    if top:
        request.output.logprobs.top_n = top
