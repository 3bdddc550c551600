"""Answers that random weights give under a grammar, over a tokenizer whose tokens are bytes and marks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLMatcher

from frontend.answers.binding import BoundFormat
from frontend.answers.formats import REASONING_FORMATS, TOOL_FORMATS
from frontend.answers.tables import ToolFormat
from frontend.grammar.answer import AnswerJudge
from frontend.grammar.judge import byte_tokenizer
from pagewire.internal.v1 import reader_pb2
from tests.frontend.answers.transcripts import Read, machine, summed

ENDS = frozenset(b'"]}<)')
LONGEST = 3000


def marks_of(table: ToolFormat) -> list[str]:
    """The marks of a format that can be special tokens: those without names and quotes in them."""
    found = {text for state in table.states.values() for text in state.markers}
    found |= {*table.opens, *table.also}
    if table.frames is not None:
        found |= {"<|end|>", "<|start|>", "<|call|>", "<|return|>"}
    if table.name == "gemma-4":
        found = {"<|tool_call>", "<tool_call|>", '<|"|>'}
    return sorted(text for text in found if text[0] in "<[" and text[-1] in ">]" and len(text) > 3)


@dataclass
class RandomModel:
    """A model that writes one format. special: its marks are tokens."""

    name: str
    special: bool = True
    reasoning: str | None = None

    def __post_init__(self) -> None:
        table = TOOL_FORMATS[self.name]
        self.marks = marks_of(table) if self.special else []
        if self.reasoning is not None and self.special:
            self.marks += [REASONING_FORMATS[self.reasoning].open, REASONING_FORMATS[self.reasoning].close]
        self.tokenizer = byte_tokenizer(self.marks)
        self.ids = {text: 256 + place for place, text in enumerate(self.marks)}
        self.end = 256 + len(self.marks)
        reasoning = REASONING_FORMATS[self.reasoning] if self.reasoning is not None else None
        self.judge = AnswerJudge(self.ids, table, reasoning)
        self.table = BoundFormat(table, reasoning, {token: text for text, token in self.ids.items()})
        self._texts = [text.encode() for text in marks_of(table)]

    def grammar(self, form: reader_pb2.AnswerForm) -> str:
        return self.judge.compile(form)

    def matcher(self, grammar: str) -> LLMatcher:
        return LLMatcher(self.tokenizer, grammar, log_level=0)

    def allowed(self, matcher: LLMatcher) -> list[int]:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        return [token for token in range(self.end + 1) if mask >> token & 1]

    def answer(self, grammar: str, dice: random.Random, most: int = LONGEST) -> list[int] | None:
        """Random tokens until the end of the sequence; None: they did not end in time."""
        matcher, tokens = self.matcher(grammar), list[int]()
        while len(tokens) < most:
            allowed = self.allowed(matcher)
            assert allowed, self.text(tokens)
            if allowed == [self.end] or (self.end in allowed and dice.random() < 0.5):
                return tokens
            token = self._choose([each for each in allowed if each != self.end], tokens, dice)
            assert matcher.consume_token(token) and not matcher.is_error()
            tokens.append(token)
        return None

    def _choose(self, allowed: Sequence[int], tokens: Sequence[int], dice: random.Random) -> int:
        """Often what ends strings and goes on with a mark: noise alone would never end."""
        tail = bytes(token for token in tokens[-30:] if token < 256)
        for mark in dice.sample(self._texts, len(self._texts)):
            for size in range(len(mark) - 1, 0, -1):
                if tail.endswith(mark[:size]) and mark[size] in allowed and dice.random() < 0.9:
                    return mark[size]
        special = [token for token in allowed if token >= 256]
        if special and dice.random() < 0.3:
            return dice.choice(special)
        ends = [token for token in allowed if token in ENDS]
        return dice.choice(ends if ends and dice.random() < 0.3 else allowed)

    def text(self, tokens: Sequence[int]) -> str:
        """The text as a client with skip_special_tokens=False sees it."""
        pieces = [bytes([token]) if token < 256 else self.marks[token - 256].encode() for token in tokens]
        return b"".join(pieces).decode("utf-8", "replace")

    def read(self, tokens: Sequence[int], prompt_end: str = "") -> Read:
        """What the format's machine reads."""
        reading, pending, events = machine(self.table, prompt_end), bytearray(), []
        for token in [*tokens, self.end]:
            if token < 256:
                pending.append(token)
                continue
            events += reading.feed(pending.decode("utf-8", "replace"))
            pending.clear()
            if token != self.end:
                events += reading.feed(self.table.marks.get(token, self.marks[token - 256]))
        return summed(events + reading.finish())
