"""Reads the body of POST /v1/chat/completions."""

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2

from frontend.errors import InvalidRequest, Unsupported
from frontend.field_names import Names
from frontend.templates.chat_template import ChatTemplate
from frontend.templates.conversation import ASSISTANT, EFFORT
from frontend.validation.requests import MAX_PARTS
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_openai.requests import values
from pagewire_openai.requests.audio import AUDIO_URL, INPUT_AUDIO, read_audio_url, read_input_audio
from pagewire_openai.requests.fields import (
    EXTENSIONS,
    SAMPLING,
    Field,
    Table,
    ask_for_logprobs,
    given,
    list_of,
    object_schema,
    one_of,
    read_fields,
    read_object,
    read_parts,
)
from pagewire_openai.requests.images import IMAGE_URL, add_medium, read_image_url
from pagewire_openai.requests.structured import STRUCTURED, read_structured
from pagewire_openai.requests.tools import NESTED, read_inner, read_nested_tools

MAX_KWARGS_NESTING = 30
"""Objects and lists within one another in the template's variables. Each takes three messages of protobuf,
which reads at most 100 within one another."""
_CALLED: Table = {
    "name": Field(values.text),
    "arguments": Field(values.text),
    "parsed_arguments": Field(values.anything),  # of the openai package: what `arguments` says
}
_CALL: Table = {
    "id": Field(values.text),
    "type": Field(values.text),
    "function": Field(values.json_object, inner=object_schema(_CALLED, "name")),
    "index": Field(values.anything),  # of the stream that it came in
}
_PART: Table = {
    "type": Field(values.text),
    "text": Field(values.text),
    "image_url": IMAGE_URL,
    "input_audio": INPUT_AUDIO,
    "audio_url": AUDIO_URL,
    "cache_control": Field(values.anything),
}
_PARTS = {"text": "text", "image_url": "image_url", "input_audio": "input_audio", "audio_url": "audio_url"}
"""Type of a part -> its field."""
_READ = {"image_url": read_image_url, "input_audio": read_input_audio, "audio_url": read_audio_url}
"""Fields of media -> what returns the URI and the path of its field."""
_MESSAGE: Table = {
    "role": Field(values.text),
    "content": Field(values.as_it_is, inner=one_of(values.text.schema, list_of(object_schema(_PART)))),
    "name": Field(values.text),
    "tool_calls": Field(values.as_it_is, inner=list_of(object_schema(_CALL, "function"))),
    "tool_call_id": Field(values.text),
    "reasoning_content": Field(values.text),
    "reasoning": Field(values.text),  # as newer servers call it
    "refusal": Field(values.nothing("")),
    "annotations": Field(values.nothing([])),
    "parsed": Field(values.anything),  # of the openai package: what `content` says
    "cache_control": Field(values.anything),
}
"""Answers come back as messages: with what servers and the openai package put into them, too."""
_SCHEMA: Table = {
    "name": Field(values.text),
    "description": Field(values.text),
    "schema": Field(values.json_object),
    "strict": Field(values.boolean),
}
_FORMAT: Table = {
    "type": Field(values.text),
    "json_schema": Field(values.json_object, inner=object_schema(_SCHEMA, "schema")),
}
CONVERSATION: Table = {
    "messages": Field(values.anything, inner=list_of(object_schema(_MESSAGE, "role"))),
    "chat_template_kwargs": Field(values.json_object),
    **NESTED,
}
"""The fields that read_conversation() reads."""
CHAT: Table = {
    **SAMPLING,
    **EXTENSIONS,
    **STRUCTURED,
    **CONVERSATION,
    "max_tokens": Field(values.count, "stopping.max_tokens"),
    "max_completion_tokens": Field(values.count, "stopping.max_tokens"),
    "logprobs": Field(values.boolean),
    "top_logprobs": Field(values.count),
    "response_format": Field(values.json_object, inner=object_schema(_FORMAT, "type")),
    "parallel_tool_calls": Field(values.boolean, "prompt.chat.parallel_tool_calls"),
    "thinking_token_budget": Field(values.count, "reasoning.budget"),
    "reasoning_effort": Field(values.text),
    "modalities": Field(values.nothing(["text"])),
    "verbosity": Field(values.nothing("medium")),
    "add_generation_prompt": Field(values.boolean, "prompt.chat.add_generation_prompt"),
    "continue_final_message": Field(values.boolean, "prompt.chat.continue_final_message"),
}
NO_THINKING = "none"


def read_chat(
    body: Mapping[str, Any], names: Names, template: ChatTemplate | None
) -> generation_pb2.GenerateRequest:
    """Returns the request of a chat completion. template: the model's. Raises InvalidRequest and Unsupported
    with OpenAI's names."""
    request = generation_pb2.GenerateRequest()
    read_fields(body, CHAT, request, names)
    most = {given(body, name, None) for name in ("max_tokens", "max_completion_tokens")} - {None}
    if len(most) > 1:
        raise InvalidRequest({"max_tokens": "must be equal to max_completion_tokens where both are given"})
    _read_logprobs(body, request, names)
    read_conversation(body, request.prompt, names, "prompt")
    if (wanted := given(body, "response_format", None)) is not None:
        names["structured_output"] = "response_format"
        _read_format(wanted, request)
    read_structured(body, request, names)
    if (effort := given(body, "reasoning_effort", None)) is not None:
        put_effort(effort, "reasoning_effort", request.prompt.chat, template)
    return request


def read_conversation(body: Mapping[str, Any], prompt: prompt_pb2.Prompt, names: Names, path: str) -> None:
    """Reads the fields of a conversation. path: of the prompt in the request. Raises InvalidRequest,
    Unsupported."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest({"messages": "must be a list of at least one message"})
    if len(messages) > MAX_PARTS:
        raise InvalidRequest({"messages": f"must be at most {MAX_PARTS} messages"})
    names[path] = "messages"
    names[f"{path}.chat.messages"] = "messages"
    names[f"{path}.chat"] = "messages"
    names[f"{path}.chat.tools"] = "tools"
    names[f"{path}.chat.tool_choice"] = "tool_choice"
    names[f"{path}.chat.tool_choice.mode"] = "tool_choice"
    names[f"{path}.chat.tool_choice.function"] = "tool_choice.function.name"
    for place, message in enumerate(messages):
        sent_path = f"{path}.chat.messages[{place}]"
        _read_message(message, f"messages[{place}]", prompt.chat.messages.add(), names, sent_path)
    read_template_kwargs(body, prompt.chat, names, f"{path}.chat")
    read_nested_tools(body, prompt.chat)


def read_template_kwargs(body: Mapping[str, Any], chat: prompt_pb2.Chat, names: Names, path: str) -> None:
    """Reads the template's variables. path: of the conversation in the request. Raises InvalidRequest."""
    if (kwargs := given(body, "chat_template_kwargs", None)) is None:
        return
    names[f"{path}.template_kwargs"] = "chat_template_kwargs"
    try:
        values.check_texts(kwargs, most=MAX_KWARGS_NESTING)
    except ValueError as error:
        raise InvalidRequest({"chat_template_kwargs": str(error)}) from None
    fields = struct_pb2.Struct()
    try:
        fields.update(kwargs)
    except (ValueError, RecursionError):
        raise InvalidRequest({"chat_template_kwargs": "must hold JSON values"}) from None
    chat.template_kwargs.CopyFrom(fields)


def _read_logprobs(body: Mapping[str, Any], request: generation_pb2.GenerateRequest, names: Names) -> None:
    top = given(body, "top_logprobs", None)
    if not given(body, "logprobs", False):
        if top:
            raise InvalidRequest({"top_logprobs": "needs logprobs: true"})
        return
    ask_for_logprobs(request, top, names, name="logprobs", top_name="top_logprobs")


def _read_message(
    given_message: Any, path: str, message: prompt_pb2.ChatMessage, names: Names, sent_path: str
) -> None:
    """path: of the client's field. sent_path: of the message in the request."""
    fields = read_object(given_message, path, _MESSAGE, ("role",))
    message.role = fields["role"]
    message.name = fields.get("name", "")
    message.reasoning = fields.get("reasoning_content", "") or fields.get("reasoning", "")
    message.tool_call_id = fields.get("tool_call_id", "")
    if "content" in fields:
        refusal = "is not supported"
        for field, value, where in read_parts(fields["content"], f"{path}.content", _PART, _PARTS, refusal):
            if field == "text":
                message.content.add(text=value)
            else:
                add_medium(message, *_READ[field](value, f"{where}.{field}"), names, sent_path)
    elif "tool_calls" not in fields and not (message.role == ASSISTANT and "content" in given_message):
        raise InvalidRequest({f"{path}.content": "is required"})
    calls = fields.get("tool_calls", [])
    if not isinstance(calls, list):
        raise InvalidRequest({f"{path}.tool_calls": "must be a list"})
    for place, call in enumerate(calls):
        outer, function = read_inner(call, f"{path}.tool_calls[{place}]", _CALL, _CALLED)
        called = {name: function.get(name, "") for name in ("name", "arguments")}
        message.tool_calls.add(id=outer.get("id", ""), **called)


def _read_format(value: Any, request: generation_pb2.GenerateRequest) -> None:
    fields = read_object(value, "response_format", _FORMAT)
    schema = None
    if (kind := fields.get("type")) == "json_schema":
        path = "response_format.json_schema"
        schema = read_object(fields.get("json_schema"), path, _SCHEMA, ("schema",))["schema"]
    put_format(kind, schema, "response_format", request)


def put_format(kind: Any, schema: Any, path: str, request: generation_pb2.GenerateRequest) -> None:
    """Sets the format of the answer's text. kind: its type. path: of the client's field. Raises
    InvalidRequest."""
    if kind == "json_object":
        request.structured_output.json_object = True
    elif kind == "json_schema":
        request.structured_output.json_schema = json.dumps(schema)
    elif kind != "text":
        raise InvalidRequest({f"{path}.type": "must be text, json_object or json_schema"})


def put_effort(effort: str, name: str, chat: prompt_pb2.Chat, template: ChatTemplate | None) -> None:
    """Sets the template's own variable, or its switch for `none`. name: of the client's field. Raises
    InvalidRequest; Unsupported, where the template has neither."""
    if template is None:
        return  # a conversation is refused without one
    features = template.features(with_tools=bool(chat.tools))
    if features.effort:
        if EFFORT in chat.template_kwargs.fields:
            raise InvalidRequest({name: "is set by chat_template_kwargs already"})
        chat.template_kwargs[EFFORT] = effort
    elif effort == NO_THINKING and features.switches:
        chat.enable_thinking = False
    else:
        raise Unsupported({name: "the model's chat template has no such switch"})
