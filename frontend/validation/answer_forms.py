"""Fields that say what an answer must look like: structured output, tools, and the choice among them. Pure.

frontend.grammar judges their texts; this file says which of them go together.
"""

from collections.abc import Iterator

from pagewire.limits import MAX_GRAMMAR_BYTES
from pagewire.v1 import generation_pb2, prompt_pb2

FORMATS = "json_object, json_schema, regex, choice, grammar or structural_tag"


CHAT = "prompt.chat"
BUDGET = "reasoning.budget"
MAX_TOOLS = 256
"""Tools of one conversation."""


def fields_with_grammars(request: generation_pb2.GenerateRequest) -> list[str]:
    """Returns the paths of the fields for which an answer needs a grammar."""
    fields = []
    if request.HasField("structured_output"):
        fields.append("structured_output")
    if enforces_calls(request.prompt.chat):
        fields.append(f"{CHAT}.{enforced_field(request.prompt.chat)}")
    if request.reasoning.HasField("budget"):
        fields.append(BUDGET)
    return fields


def contradictions(request: generation_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for a form that is not complete, and for fields that cannot be combined."""
    if request.HasField("structured_output"):
        yield from _form_problems(request.structured_output)
        if requires_calls(request.prompt.chat):
            yield f"{CHAT}.tool_choice", "cannot be combined with structured_output: the answer is a call"
    if request.reasoning.HasField("budget") and not request.prompt.HasField("chat"):
        yield BUDGET, "needs prompt.chat: only a conversation's answer has reasoning"
    fields = fields_with_grammars(request)
    if not fields:
        return
    without = f"cannot be combined with {fields[0]}"
    if request.stopping.ignore_eos:
        yield "stopping.ignore_eos", f"{without}: its end is the end of the sequence"
    if request.sampling.HasField("beam_search") and request.stopping.min_tokens:
        yield "stopping.min_tokens", f"{without} and sampling.beam_search"
    if request.sampling.allowed_token_ids:
        yield "sampling.allowed_token_ids", without


def _form_problems(form: generation_pb2.StructuredOutput) -> Iterator[tuple[str, str]]:
    kind = form.WhichOneof("format")
    if kind is None:
        yield "structured_output", f"is required to have one of {FORMATS}"
    elif kind == "choice" and not form.choice.values:
        yield "structured_output.choice.values", "must not be empty"
    elif kind == "choice" and sum(len(value.encode()) for value in form.choice.values) > MAX_GRAMMAR_BYTES:
        yield "structured_output.choice.values", f"must be at most {MAX_GRAMMAR_BYTES} bytes in all"
    elif kind == "grammar" and not form.grammar.text:
        yield "structured_output.grammar.text", "must not be empty"


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
