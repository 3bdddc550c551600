"""What an answer consists of, in the order in which the model wrote it, without the blank text around marks.

Models write line breaks between their text and a mark: they belong to neither. Texts on both sides of a mark
are two, and so are two parts of the reasoning.
"""

from dataclasses import dataclass

BREAK = "\udfff"
"""Stands between two texts; no decoded text has it (see frontend.answers.binding)."""
SEPARATOR = "\n"
"""What clients get between two texts."""


@dataclass(frozen=True, slots=True)
class Text:
    """Part of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Part of the thinking before it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. index: 0 for the first call of the sequence."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Part of a call's arguments: JSON text, to be concatenated."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call ends. complete: its arguments are a whole JSON object."""

    index: int
    complete: bool


Event = Text | Reasoning | CallStart | Arguments | CallEnd


class EventSink:
    """Events in order; text is held back while it is blank, as a mark may follow."""

    def __init__(self, *, after_mark: bool) -> None:
        """after_mark: the answer continues a prompt that ends with a mark."""
        self._events: list[Event] = []
        self._blank = ""
        self._reasons = False  # what has come last
        self._after_mark = after_mark
        self._said: set[type[Event]] = set()  # what there has been so far

    def text(self, text: str) -> None:
        self._reasons = False
        self._say(Text, text, BREAK)

    def reasoning(self, text: str) -> None:
        self._reasons = True
        self._say(Reasoning, text, SEPARATOR)

    def mark(self) -> None:
        """A mark stands here: blank text around it is dropped."""
        self._blank, self._after_mark = "", True

    def add(self, event: CallStart | Arguments | CallEnd) -> None:
        self._events.append(event)

    def finish(self) -> None:
        """The answer ends: blank text at its end stays what it was, text or reasoning."""
        if self._blank:
            self._events.append(Reasoning(self._blank) if self._reasons else Text(self._blank))
            self._blank = ""

    def take(self) -> list[Event]:
        """Returns the events since the last call of this method."""
        events, self._events = self._events, []
        return events

    def _say(self, kind: type[Text] | type[Reasoning], text: str, between: str) -> None:
        begins = self._after_mark
        if visible := self._visible(text):
            self._events.append(kind(between + visible if begins and kind in self._said else visible))
            self._said.add(kind)

    def _visible(self, text: str) -> str:
        if self._after_mark:
            text = text.lstrip()
            if not text:
                return ""
            self._after_mark = False
        text = self._blank + text
        visible = text.rstrip()
        self._blank = text[len(visible) :]
        return visible
