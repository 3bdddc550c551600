"""Messages of a chat, put together from the parts in which an API has them."""

from frontend.field_names import Names
from pagewire.v1 import prompt_pb2
from pagewire_openai.requests.images import add_medium

ASSISTANT, TOOL = "assistant", "tool"
_FULL = {
    "reasoning": ("reasoning", "content", "tool_calls"),
    "content": ("content", "tool_calls"),
    "tool_calls": (),
}
"""Part of an assistant's message -> the parts after which it begins another message."""


class Turns:
    """Adds messages to a chat, in order: an assistant's reasoning, text and calls become one message."""

    def __init__(self, chat: prompt_pb2.Chat, names: Names, path: str) -> None:
        """path: of the chat in the request."""
        self._chat = chat
        self._names = names
        self._path = path
        self._turn: prompt_pb2.ChatMessage | None = None
        """The assistant's turn to which the next part may belong."""

    def add(self, role: str, name: str) -> prompt_pb2.ChatMessage:
        """Adds a message, which the client knows by `name`."""
        self._names[f"{self._path}.messages[{len(self._chat.messages)}]"] = name
        message = self._chat.messages.add(role=role)
        self._turn = message if role == ASSISTANT else None
        return message

    def add_image(self, message: prompt_pb2.ChatMessage, uri: str, name: str) -> None:
        """Adds an image to the last message. name: the client's field that has its URI."""
        path = f"{self._path}.messages[{len(self._chat.messages) - 1}]"
        add_medium(message, uri, name, self._names, path)

    def turn_for(self, part: str, name: str) -> prompt_pb2.ChatMessage:
        """Returns the assistant's message that has room for a part, or a new one."""
        turn = self._turn
        if turn is not None and not any(getattr(turn, each) for each in _FULL[part]):
            return turn
        return self.add(ASSISTANT, name)
