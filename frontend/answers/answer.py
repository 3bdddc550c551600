"""The answer of one sequence: token ids in, text out, with reasoning and calls apart.

It takes the place of the sequence's detokenizer: what push() and flush() return is the text that is neither
reasoning nor part of a call.
"""

import hashlib
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from frontend.answers.binding import BoundFormat
from frontend.answers.call_writer import Schemas
from frontend.answers.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text
from frontend.answers.machine import Machine
from frontend.text.detokenizer import Detokenizer
from pagewire.v1 import generation_pb2

EOS = generation_pb2.FINISH_REASON_EOS
STOP = generation_pb2.FINISH_REASON_STOP
TOOL_CALLS = generation_pb2.FINISH_REASON_TOOL_CALLS
_ALPHABET = string.digits + string.ascii_letters


class CallIds:
    """Ids of a request's calls: a function of its seed, its prompt's length, the sequence and the call.

    A continued stream computes them again. The length tells the turns of a conversation apart, which may all
    have one seed.
    """

    def __init__(self, seed: int, prompt_len: int, *, short: bool) -> None:
        self._key = f"{seed}/{prompt_len}"
        self._short = short

    def new(self, sequence: int, call: int) -> str:
        """Returns the id of a call, counted from 0."""
        digest = hashlib.blake2b(f"{self._key}/{sequence}/{call}".encode(), digest_size=24).digest()
        letters = [_ALPHABET[byte % len(_ALPHABET)] for byte in digest]
        return "".join(letters[:9]) if self._short else "call_" + "".join(letters)


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What the answers of one request share.

    prompt_end: see BoundFormat.state_after. keep_marks: special tokens that turn out to be text are shown.
    cumulative: each message repeats everything so far.
    """

    table: BoundFormat
    schemas: Schemas
    ids: CallIds
    prompt_end: str
    keep_marks: bool = False
    cumulative: bool = False


@dataclass(slots=True)
class _CallPart:
    """What a message says of a call; id and name in its first part only."""

    index: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Answer:
    """Reads the tokens of one sequence; see frontend.text.detokenizer.Detokenizer for push() and flush()."""

    def __init__(self, context: AnswerContext, index: int, detokenizer: Detokenizer) -> None:
        """index: of the sequence. detokenizer: primed with the prompt."""
        self.num_reasoning_tokens = 0
        self._marks = context.table.marks
        self._detokenizer = detokenizer
        self._machine = Machine(
            context.table,
            context.schemas,
            lambda call: context.ids.new(index, call),
            state=context.table.state_after(context.prompt_end),
            keep_marks=context.keep_marks,
        )
        self._cumulative = context.cumulative
        self._reasoning: list[str] = []
        self._calls: list[_CallPart] = []
        self._num_calls = 0
        self._all_complete = True

    def prime(self, prompt: Iterable[int]) -> None:
        """Does nothing: the detokenizer has been primed."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Consumes tokens and returns the text of the answer that they decide."""
        pieces: list[str] = []
        for token in token_ids:
            mark = self._marks.get(token)
            piece = self._detokenizer.push((token,)) if mark is None else self._detokenizer.flush() + mark
            reasoned = self._machine.is_reasoning
            pieces += self._texts(self._machine.feed(piece))
            if reasoned or self._machine.is_reasoning:
                self.num_reasoning_tokens += 1
        return "".join(pieces)

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the sequence."""
        pieces = self._texts(self._machine.feed(self._detokenizer.flush()))
        return "".join(pieces + self._texts(self._machine.finish()))

    def copy(self) -> Self:
        """An answer belongs to one sequence, whose number is part of its calls' ids."""
        raise TypeError("an answer is not copied")

    @property
    def has_news(self) -> bool:
        """True when a message would contain reasoning or parts of calls."""
        return bool(self._reasoning or self._calls)

    def put(self, output: generation_pb2.SequenceOutput) -> None:
        """Adds reasoning and calls to a message, and the reason of an answer that ends with calls."""
        output.reasoning = "".join(self._reasoning)
        for part in self._calls:
            text = "".join(part.arguments)
            output.tool_calls.add(index=part.index, id=part.id, name=part.name, arguments=text)
        if not self._cumulative:
            self.forget()
        finish = output.finish
        if finish.reason in (EOS, STOP) and not finish.HasField("stop") and self._ends_with_calls:
            finish.reason = TOOL_CALLS

    def forget(self) -> None:
        """Drops what no message needs to contain: the client has it."""
        self._reasoning.clear()
        self._calls.clear()

    @property
    def _ends_with_calls(self) -> bool:
        return self._num_calls > 0 and self._all_complete

    def _texts(self, events: Iterable[Event]) -> list[str]:
        """Takes the events of reasoning and calls; returns the texts."""
        texts: list[str] = []
        for event in events:
            match event:
                case Text(text):
                    texts.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart(index, call_id, name):
                    self._num_calls += 1
                    self._calls.append(_CallPart(index, call_id, name))
                case Arguments(index, text):
                    if not self._calls or self._calls[-1].index != index:
                        self._calls.append(_CallPart(index))
                    self._calls[-1].arguments.append(text)
                case CallEnd(_, complete):
                    self._all_complete &= complete
        return texts
