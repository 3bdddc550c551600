"""What an answer consists of, in the order in which the model wrote it."""

from dataclasses import dataclass


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
