"""Checks the tools of a conversation, and the choice among them. Pure."""

from collections.abc import Iterator

from pagewire.v1 import prompt_pb2

MAX_TOOLS = 256
"""Tools of one conversation."""


def tool_problems(chat: prompt_pb2.Chat) -> Iterator[tuple[str, str]]:
    """Yields (path below the conversation, what is wrong there)."""
    if len(chat.tools) > MAX_TOOLS:
        yield "tools", f"must be at most {MAX_TOOLS}, not {len(chat.tools)}"
        return
    names: set[str] = set()
    for place, tool in enumerate(chat.tools):
        if not tool.name:
            yield f"tools[{place}].name", "must not be empty"
        elif tool.name in names:
            yield f"tools[{place}].name", f"{tool.name} is there twice"
        names.add(tool.name)
    for place, message in enumerate(chat.messages):
        for number, call in enumerate(message.tool_calls):
            if not call.name:
                yield f"messages[{place}].tool_calls[{number}].name", "must not be empty"
    choice = chat.tool_choice
    if choice.WhichOneof("choice") == "function":
        if choice.function not in names:
            yield "tool_choice.function", "names no tool of this conversation"
    elif choice.mode == prompt_pb2.ToolChoice.MODE_REQUIRED and not names:
        yield "tool_choice.mode", "requires a call, but there are no tools"


def unenforced(chat: prompt_pb2.Chat) -> Iterator[tuple[str, str]]:
    """Yields (path below the conversation, why it is refused) for choices that need a grammar."""
    choice = chat.tool_choice
    if choice.WhichOneof("choice") == "function":
        yield "tool_choice.function", "is not implemented yet: only the model can choose"
    elif choice.mode == prompt_pb2.ToolChoice.MODE_REQUIRED:
        yield "tool_choice.mode", "MODE_REQUIRED is not implemented yet: only the model can choose"
