"""Binds a format's table to a tokenizer: special tokens become single characters that no text contains.

UTF-8 has no surrogates, so a decoded text never contains one. Each special token that a table names is given
one: a marker is found by the token's id, and text that spells it the same is text.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frontend.answers.tables import (
    REASONING,
    TEXT,
    Go,
    PairNotation,
    ReasoningFormat,
    State,
    Take,
    ToolFormat,
)

FIRST_SURROGATE = 0xD800


@dataclass(frozen=True, slots=True)
class _Markers:
    """The markers of one state, ready to be searched for."""

    pattern: re.Pattern[str]
    all: tuple[str, ...]
    firsts: frozenset[str]
    longest: int


class BoundFormat:
    """A table of one format, or of one for calls and one for reasoning, over one tokenizer."""

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        special_tokens: Mapping[int, str],
    ) -> None:
        """special_tokens: by id, with their text. tools: None where calls are not read."""
        self.format = tools or ToolFormat("none")
        states = _states(self.format, reasoning)
        texts = {text for state in states.values() for text in state.markers} | set(self.format.also)
        if reasoning is not None:
            texts.add(reasoning.open)
        used = {token: text for token, text in special_tokens.items() if any(text in each for each in texts)}
        characters = {
            text: chr(FIRST_SURROGATE + place) for place, text in enumerate(sorted(set(used.values())))
        }
        self.marks = {token: characters[text] for token, text in used.items()}
        """Special token -> the character that stands for it."""
        self._literals = {character: text for text, character in characters.items()}
        self._characters = dict(sorted(characters.items(), key=lambda item: -len(item[0])))
        self._surrogate = re.compile("[\ud800-\udfff]")
        self.states = {name: self._bound(state) for name, state in states.items()}
        self._markers = {name: _markers(state.markers) for name, state in self.states.items()}
        self.routes = [(re.compile(pattern), state) for pattern, state in self.format.routes]
        self.call_name = re.compile(self.format.call_name)
        self._header = re.compile(self.format.header)
        self.pairs = self._bound_pairs(self.format.pairs)
        self._reasoning_open = self.spelled(reasoning.open) if reasoning is not None else None
        self._reasoning_close = self.spelled(reasoning.close) if reasoning is not None else None

    def state_after(self, prompt_end: str) -> str:
        """Returns the state of an answer that follows a prompt. prompt_end: what the model has written of its
        turn, or the template for it, special tokens as their characters."""
        opened, closed = self._reasoning_open, self._reasoning_close
        if opened is not None and closed is not None and prompt_end.rfind(opened) > prompt_end.rfind(closed):
            return REASONING
        return self.format.start

    def ends_reasoning(self, prompt_end: str) -> bool:
        """Returns whether a prompt ends with the end of the reasoning, as templates write it for none."""
        close = self._reasoning_close
        return close is not None and prompt_end.rstrip().endswith(close)

    def reasoning_mark(self, text: str) -> str:
        """Returns the mark of reasoning that a text ends with, besides blanks; "": none."""
        marks = (self._reasoning_open, self._reasoning_close)
        return next((mark for mark in marks if mark is not None and text.rstrip().endswith(mark)), "")

    def find(self, state: str, text: str) -> re.Match[str] | None:
        """Finds the first marker of a state."""
        return self._markers[state].pattern.search(text)

    def at_start(self, state: str, text: str) -> str | None:
        """Returns the marker that a text begins with."""
        found = self._markers[state].pattern.match(text)
        return found[0] if found is not None else None

    def may_begin(self, state: str, text: str) -> bool:
        """True when the whole text is the beginning of a marker."""
        return any(marker.startswith(text) for marker in self._markers[state].all)

    def undecided(self, state: str, text: str) -> int:
        """Returns the length of the longest end of a text that a marker may begin with."""
        markers = self._markers[state]
        begin = max(len(text) - markers.longest + 1, 0)
        for place in range(begin, len(text)):
            if text[place] in markers.firsts and self.may_begin(state, text[place:]):
                return len(text) - place
        return 0

    def find_mark(self, text: str) -> int | None:
        """Returns the place of the first special token; None: there is none."""
        found = None if text.isascii() else self._surrogate.search(text)
        return found.start() if found is not None else None

    def begins_header(self, text: str) -> bool:
        """Returns whether a text is the beginning of a header, in which an answer was cut."""
        return self.find_mark(text) is not None or self._header.fullmatch(text) is not None

    def literal(self, text: str) -> str:
        """Returns a text with special tokens as they are spelled."""
        if text.isascii() or self._surrogate.search(text) is None:
            return text
        return self._surrogate.sub(lambda found: self._literals[found[0]], text)

    def without_marks(self, text: str) -> str:
        """Returns a text without special tokens."""
        return text if text.isascii() else self._surrogate.sub("", text)

    def spelled(self, text: str) -> str:
        """Returns a text with special tokens as their characters, wherever they are spelled."""
        for literal, character in self._characters.items():
            text = text.replace(literal, character)
        return text

    def _bound(self, state: State) -> State:
        markers = {self.spelled(text): step for text, step in state.markers.items()}
        return State(state.take, markers, state.then)

    def _bound_pairs(self, pairs: PairNotation | None) -> PairNotation | None:
        if pairs is None:
            return None
        quotes = tuple(self.spelled(quote) for quote in pairs.quotes)
        return PairNotation(pairs.separator, pairs.close, quotes, pairs.escapes)


def _states(tools: ToolFormat, reasoning: ReasoningFormat | None) -> dict[str, State]:
    opens = dict(tools.opens)
    states = dict(tools.states)
    if reasoning is not None:
        opens[reasoning.open] = Go(REASONING)
        opens.update(dict.fromkeys(reasoning.around_text, Go(TEXT)))
        states.setdefault(REASONING, State(Take.REASONING, {reasoning.close: Go(tools.start)}))
    states.setdefault(TEXT, State(Take.TEXT, opens))
    if tools.start != TEXT and states[tools.start].take is not Take.HEADER:
        first = states[tools.start]  # an answer may also begin with what begins calls within it
        states[tools.start] = State(first.take, {**opens, **first.markers}, first.then)
    return states


def _markers(texts: Iterable[str]) -> _Markers:
    ordered = tuple(sorted(texts, key=len, reverse=True))
    pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
    return _Markers(
        pattern,
        ordered,
        frozenset(text[0] for text in ordered),
        max(map(len, ordered), default=0),
    )
