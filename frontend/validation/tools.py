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


def requires_calls(chat: prompt_pb2.Chat) -> bool:
    """Returns whether an answer has to be a call."""
    choice = chat.tool_choice
    return choice.WhichOneof("choice") == "function" or choice.mode == prompt_pb2.ToolChoice.MODE_REQUIRED


def enforces_calls(chat: prompt_pb2.Chat) -> bool:
    """Returns whether a grammar has to enforce calls: their presence, their arguments, or their number."""
    if not chat.tools or chat.tool_choice.mode == prompt_pb2.ToolChoice.MODE_NONE:
        return False
    single = chat.HasField("parallel_tool_calls") and not chat.parallel_tool_calls
    return requires_calls(chat) or single or any(tool.strict for tool in chat.tools)


def enforced_field(chat: prompt_pb2.Chat) -> str:
    """Returns the path below the conversation of the field for which calls are enforced."""
    if requires_calls(chat):
        return "tool_choice"
    if any(tool.strict for tool in chat.tools):
        place = next(place for place, tool in enumerate(chat.tools) if tool.strict)
        return f"tools[{place}].strict"
    return "parallel_tool_calls"
