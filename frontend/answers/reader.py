"""What a request says of its answers: which of their texts is reasoning and which are calls, and the form of
which a grammar is made.
"""

from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Items
from typing import Any

from frontend.answers.answer import AnswerContext, CallIds
from frontend.answers.binding import BoundFormat
from frontend.answers.call_writer import Schemas
from frontend.answers.choice import AnswerFormats
from frontend.answers.tables import REASONING
from frontend.answers.values import schemas_of
from frontend.errors import Unsupported
from frontend.templates.conversation import offers_tools
from frontend.text.tokenizer import Tokenizer
from frontend.validation.answer_forms import enforces_calls, requires_calls
from frontend.validation.json_objects import read_object
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import generation_pb2, prompt_pb2

PROMPT_END = 64
"""Tokens at the end of a prompt that are looked at for a mark that it leaves open."""
CUMULATIVE = generation_pb2.OutputOptions.MODE_CUMULATIVE


async def open_answers(
    request: generation_pb2.GenerateRequest,
    formats: AnswerFormats,
    prompt: Items[int],
    seed: int,
    run: Callable[[Callable[[], Schemas]], Awaitable[Schemas]],
) -> AnswerContext | None:
    """Returns what a validated request's answers share; None when they are text alone. Raises Unsupported.

    run: calls a function in a thread, for what takes time in proportion to the tools' schemas.
    """
    if not request.prompt.HasField("chat"):
        return None
    if request.output.HasField("text") and not request.output.text:
        return None
    chat = request.prompt.chat
    has_tools = offers_tools(chat)
    if has_tools and formats.tools is None:
        problem = "the format of the model's tool calls is not known: see --tool-format"
        raise Unsupported({"prompt.chat.tools": problem})
    table = formats.with_calls if has_tools else formats.without_calls
    if table is None:
        return None
    ids = CallIds(seed, len(prompt), short=table.format.short_ids)
    end = end_of_prompt(table, formats.tokenizer, prompt, chat)
    schemas = await run(lambda: read_schemas(chat)) if has_tools else {}
    output = request.output
    keep_marks = output.HasField("skip_special_tokens") and not output.skip_special_tokens
    cumulative = output.mode == CUMULATIVE
    return AnswerContext(table, schemas, ids, end, keep_marks=keep_marks, cumulative=cumulative)


def read_schemas(chat: prompt_pb2.Chat) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the schemas of each tool's arguments, as far as their tool names them."""
    return schemas_of(
        {tool.name: read_object(tool.parameters or "{}", "prompt.chat.tools") for tool in chat.tools}
    )


def end_of_prompt(table: BoundFormat, tokenizer: Tokenizer, prompt: Items[int], chat: prompt_pb2.Chat) -> str:
    """Returns the end of a prompt as far as it says where the answer begins: a mark of reasoning that the
    template wrote, and the message that is continued."""
    content = ""
    if chat.continue_final_message:
        content = table.spelled("".join(part.text for part in chat.messages[-1].content)).strip()
    tail = text_with_marks(table, tokenizer, prompt[-PROMPT_END - len(content.encode("utf-8", "replace")) :])
    return table.reasoning_mark(tail.strip().removesuffix(table.literal(content))) + content


def text_with_marks(table: BoundFormat, tokenizer: Tokenizer, token_ids: Items[int]) -> str:
    """Returns the text of tokens, the special ones among them as the table's characters."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    pieces = []
    for token in token_ids:
        mark = table.marks.get(token)
        pieces.append(detokenizer.push((token,)) if mark is None else detokenizer.flush() + mark)
    return "".join(pieces) + detokenizer.flush()


def answer_form(
    request: generation_pb2.GenerateRequest, formats: AnswerFormats, prompt: Items[int]
) -> reader_pb2.AnswerForm | None:
    """Returns the form of a validated request's answers; None: they are free. Raises Unsupported."""
    is_structured, chat = request.HasField("structured_output"), request.prompt.chat
    has_budget = request.reasoning.HasField("budget")
    if not (is_structured or has_budget or enforces_calls(chat)):
        return None
    form = reader_pb2.AnswerForm()
    if is_structured:
        form.structured_output.CopyFrom(request.structured_output)
    if not request.prompt.HasField("chat"):
        return form
    if has_budget:
        if not formats.reasons:
            problem = "the marks of the model's reasoning are not known: see --reasoning-format"
            raise Unsupported({"reasoning.budget": problem})
        form.reasoning_budget = request.reasoning.budget
    is_framed = formats.tools is not None and formats.tools.frames is not None
    if not is_structured and offers_tools(chat) and (is_framed or enforces_calls(chat)):
        _put_tools(form, chat)
    table = formats.with_calls if offers_tools(chat) else formats.without_calls
    if table is not None and formats.reasons:
        form.reasoning = _reasoning_after(table, end_of_prompt(table, formats.tokenizer, prompt, chat))
    return form


def _put_tools(form: reader_pb2.AnswerForm, chat: prompt_pb2.Chat) -> None:
    """Adds the tools that may be called, with their schemas where these are enforced."""
    choice = chat.tool_choice
    named = choice.function if choice.WhichOneof("choice") == "function" else ""
    form.calls_required = requires_calls(chat)
    form.single_call = bool(named) or (chat.HasField("parallel_tool_calls") and not chat.parallel_tool_calls)
    for place, tool in enumerate(chat.tools):
        if named in ("", tool.name):
            added = form.tools.add(name=tool.name, place=place)
            if tool.strict or form.calls_required:
                added.parameters = tool.parameters


def _reasoning_after(table: BoundFormat, prompt_end: str) -> reader_pb2.AnswerForm.Reasoning:
    """Returns where a prompt leaves the answer."""
    if table.state_after(prompt_end) == REASONING:
        return reader_pb2.AnswerForm.REASONING_BEGUN
    if table.ends_reasoning(prompt_end):
        return reader_pb2.AnswerForm.REASONING_UNSPECIFIED
    return reader_pb2.AnswerForm.REASONING_POSSIBLE
