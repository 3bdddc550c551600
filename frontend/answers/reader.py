"""Opens the answers of a request: which of its texts is reasoning, and which are calls."""

from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Items
from typing import Any, Protocol

from frontend.answers.answer import Answer, CallIds
from frontend.answers.binding import BoundFormat
from frontend.answers.call_writer import Schemas
from frontend.answers.choice import AnswerFormats
from frontend.answers.values import schemas_of
from frontend.errors import Unsupported
from frontend.templates.conversation import offers_tools
from frontend.text.detokenizer import Detokenizer
from frontend.text.tokenizer import Tokenizer
from frontend.validation.json_objects import read_object
from pagewire.v1 import generation_pb2, prompt_pb2

PROMPT_END = 64
"""Tokens at the end of a prompt that are looked at for a mark that it leaves open."""
CUMULATIVE = generation_pb2.OutputOptions.MODE_CUMULATIVE


class AnswerReader:
    """What the answers of one request have in common."""

    def __init__(
        self,
        table: BoundFormat,
        schemas: Schemas,
        ids: CallIds,
        prompt_end: str,
        output: generation_pb2.OutputOptions,
    ) -> None:
        self._table = table
        self._schemas = schemas
        self._ids = ids
        self._prompt_end = prompt_end
        self._keep_marks = output.HasField("skip_special_tokens") and not output.skip_special_tokens
        self._cumulative = output.mode == CUMULATIVE

    def answer(self, index: int, detokenizer: Detokenizer) -> Answer:
        """Returns the answer of one sequence. detokenizer: primed with the prompt."""
        return Answer(
            self._table,
            detokenizer,
            self._schemas,
            self._ids,
            index,
            self._prompt_end,
            keep_marks=self._keep_marks,
            cumulative=self._cumulative,
        )


class AnsweringModel(Protocol):
    """A model, as far as its answers are concerned."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    @property
    def answers(self) -> AnswerFormats:
        """How it writes answers."""


async def open_answers(
    request: generation_pb2.GenerateRequest,
    model: AnsweringModel,
    prompt: Items[int],
    seed: int,
    run: Callable[[Callable[[], Schemas]], Awaitable[Schemas]],
) -> AnswerReader | None:
    """Returns the reader of a validated request's answers; None when they are text alone. Raises Unsupported.

    run: calls a function in a thread, for what takes time in proportion to the tools' schemas.
    """
    if not request.prompt.HasField("chat"):
        return None
    if request.output.HasField("text") and not request.output.text:
        return None
    chat = request.prompt.chat
    has_tools = offers_tools(chat)
    formats = model.answers
    if has_tools and formats.tools is None:
        problem = "the format of the model's tool calls is not known: see --tool-format"
        raise Unsupported({"prompt.chat.tools": problem})
    table = formats.with_calls if has_tools else formats.without_calls
    if table is None:
        return None
    ids = CallIds(seed, len(prompt), short=table.format.short_ids)
    end = end_of_prompt(table, model.tokenizer, prompt, chat)
    schemas = await run(lambda: read_schemas(chat)) if has_tools else {}
    return AnswerReader(table, schemas, ids, end, request.output)


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
