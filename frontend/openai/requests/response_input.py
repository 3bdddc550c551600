"""Reads `input` of POST /v1/responses: the items of a conversation become messages of a chat.

An assistant's turn is several items there (reasoning, message, function calls) and one message here.
"""

from typing import Any

from frontend.errors import InvalidRequest, Unsupported
from frontend.openai.requests import values
from frontend.openai.requests.fields import Field, Names, Table, clipped, read_object, read_text
from frontend.validation.requests import MAX_PARTS
from pagewire.v1 import prompt_pb2

ASSISTANT, TOOL = "assistant", "tool"
_OF_ITEMS: Table = {
    "type": Field(values.text),
    "id": Field(values.anything),
    "status": Field(values.anything),
}
_MESSAGE: Table = {
    **_OF_ITEMS,
    "role": Field(values.text),
    "content": Field(values.as_it_is),
    "phase": Field(values.anything),
}
_REASONING: Table = {
    **_OF_ITEMS,
    "summary": Field(values.anything),
    "content": Field(values.as_it_is),
    "encrypted_content": Field(values.refused("is of another server: it cannot be read here")),
}
_CALL: Table = {
    **_OF_ITEMS,
    "call_id": Field(values.text),
    "name": Field(values.text),
    "arguments": Field(values.text),
}
_OUTPUT: Table = {**_OF_ITEMS, "call_id": Field(values.text), "output": Field(values.as_it_is)}
_PART: Table = {
    "type": Field(values.text),
    "text": Field(values.text),
    "annotations": Field(values.anything),
    "logprobs": Field(values.anything),
}
_TEXTS = ("input_text", "output_text", "reasoning_text")
_FULL = {
    "reasoning": ("reasoning", "content", "tool_calls"),
    "content": ("content", "tool_calls"),
    "tool_calls": (),
}
"""Part of an assistant's message -> the parts after which it begins another message."""


class ConversationItems:
    """Puts items into a chat, in order."""

    def __init__(self, chat: prompt_pb2.Chat, names: Names, path: str, *, keeps_reasoning: bool) -> None:
        """path: of the chat in the request. keeps_reasoning: the model's template has a use for the reasoning
        of earlier turns; else it is left out."""
        self._chat = chat
        self._names = names
        self._path = path
        self._keeps_reasoning = keeps_reasoning
        self._turn: prompt_pb2.ChatMessage | None = None
        """The assistant's turn to which the next item may belong."""

    def put_instructions(self, text: str) -> None:
        """Begins the conversation with a system message."""
        self._add("system", "instructions").content.add(text=text)

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
        fields = read_object(item, path, _MESSAGE)
        for name in ("role", "content"):
            if name not in fields:
                raise InvalidRequest({f"{path}.{name}": "is required"})
        role = fields["role"]
        message = self._turn_for("content", path) if role == ASSISTANT else self._add(role, path)
        self._put_text(message, fields["content"], f"{path}.content")

    def _read_reasoning(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _REASONING)
        texts = prompt_pb2.ChatMessage()
        self._put_text(texts, fields.get("content", []), f"{path}.content")
        if self._keeps_reasoning and texts.content:
            message = self._turn_for("reasoning", path)
            message.reasoning = "".join(part.text for part in texts.content)

    def _read_call(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _CALL)
        for name in ("call_id", "name", "arguments"):
            if name not in fields:
                raise InvalidRequest({f"{path}.{name}": "is required"})
        message = self._turn_for("tool_calls", path)
        message.tool_calls.add(id=fields["call_id"], name=fields["name"], arguments=fields["arguments"])

    def _read_output(self, item: dict[str, Any], path: str) -> None:
        fields = read_object(item, path, _OUTPUT)
        for name in ("call_id", "output"):
            if name not in fields:
                raise InvalidRequest({f"{path}.{name}": "is required"})
        message = self._add(TOOL, path)
        message.tool_call_id = fields["call_id"]
        self._put_text(message, fields["output"], f"{path}.output")

    def _add(self, role: str, name: str) -> prompt_pb2.ChatMessage:
        """Adds a message, which the client knows by `name`."""
        self._names.put(f"{self._path}.messages[{len(self._chat.messages)}]", name)
        message = self._chat.messages.add(role=role)
        self._turn = message if role == ASSISTANT else None
        return message

    def _turn_for(self, part: str, path: str) -> prompt_pb2.ChatMessage:
        """Returns the assistant's message that has room for a part, or a new one."""
        turn = self._turn
        if turn is not None and not any(getattr(turn, name) for name in _FULL[part]):
            return turn
        return self._add(ASSISTANT, path)

    def _put_text(self, message: prompt_pb2.ChatMessage, content: Any, path: str) -> None:
        if isinstance(content, str):
            message.content.add(text=read_text(content, path))
            return
        if not isinstance(content, list):
            raise InvalidRequest({path: "must be a string or a list of parts"})
        for place, part in enumerate(content):
            where = f"{path}[{place}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in _TEXTS:
                said = f"type {clipped(kind)} is not served" if isinstance(kind, str) else "must have a type"
                raise Unsupported({where: said})
            fields = read_object(part, where, _PART)
            if "text" not in fields:
                raise InvalidRequest({f"{where}.text": "is required"})
            message.content.add(text=fields["text"])
