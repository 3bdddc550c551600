"""What an answer must look like: from a request to the form that its grammar is made of."""

from collections.abc import Sequence as Items

from frontend.answers.binding import BoundFormat
from frontend.answers.reader import AnsweringModel, end_of_prompt
from frontend.answers.tables import REASONING
from frontend.errors import Unsupported
from frontend.templates.conversation import offers_tools
from frontend.validation.tools import enforces_calls, requires_calls
from pagewire.internal.v1 import reader_pb2
from pagewire.v1 import generation_pb2, prompt_pb2


def answer_form(
    request: generation_pb2.GenerateRequest, model: AnsweringModel, prompt: Items[int]
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
    formats = model.answers
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
        form.reasoning = _reasoning_after(table, end_of_prompt(table, model.tokenizer, prompt, chat))
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
