"""The vocabulary of format tables: states, what the text of a state is, and which marker leads where.

A table is data. frontend.answers.machine runs all of them; frontend/answers/formats/ has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

TEXT, REASONING = "text", "reasoning"
"""The two states that every format has."""


NAME = r"[\w\-](?:[\w.\-]*[\w\-])?"
"""Regular expression of a tool's name."""


class Take(Enum):
    """What the text of a state is."""

    TEXT = auto()
    REASONING = auto()
    GAP = auto()
    """Whitespace between markers. Anything else means that this is no call."""
    SKIP = auto()
    """A part of a call that says nothing, such as its type."""
    HEADER = auto()
    """The header of a message; Format.routes says what follows it."""
    NAME = auto()
    """The name of a tool. The call starts at the marker after it, unless its id follows."""
    ID = auto()
    """The id of a call, as the model writes it."""
    ARGUMENTS = auto()
    """JSON text of the arguments, which end with the state."""
    KEY = auto()
    """The name of one argument."""
    VALUE = auto()
    """The value of one argument; Go.value says how it is written."""
    JSON = auto()
    """JSON objects that are calls, one after another or in a list."""
    PAIRS = auto()
    """All arguments in the notation of Format.pairs, up to its closing character."""


class ValueStyle(Enum):
    """How the value of one argument is written."""

    BY_SCHEMA = auto()
    """As the tool's schema says: strings as they are, anything else as JSON."""
    STRING = auto()
    JSON = auto()


@dataclass(frozen=True, slots=True)
class Go:
    """What a marker does. ends: the call is complete. value: of the argument whose value has ended."""

    to: str
    ends: bool = False
    value: ValueStyle = ValueStyle.BY_SCHEMA


@dataclass(frozen=True, slots=True)
class State:
    """markers: what ends the state -> what it does. No marker of a state contains another one."""

    take: Take
    markers: Mapping[str, Go]
    then: str = TEXT
    """For PAIRS: the state after the closing character."""


@dataclass(frozen=True, slots=True)
class JsonShape:
    """The keys of a call that is a JSON object."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: str = "id"
    ignored: tuple[str, ...] = ("type",)
    keyed: bool = False
    """The only key is the name, and its value the arguments."""


@dataclass(frozen=True, slots=True)
class PairNotation:
    """How PAIRS are written: `key` separator `value`, separated by commas, up to `close`."""

    separator: str
    close: str
    quotes: tuple[str, ...]
    """Marks around strings, of which the same one opens and closes."""
    escapes: bool
    """A backslash in a string takes the next character with it."""


@dataclass(frozen=True, slots=True)
class TagWriting:
    """How models write an argument that has tags: open, name, named, value, close."""

    open: str
    named: str
    close: str
    named_string: str = ""
    """In place of `named`, before a string."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How models write calls, for grammars of calls: begin, calls with `between` between them, end.

    A call is before, name, behind, arguments, after. NUMBER stands for any number of up to four digits.
    """

    before: str
    behind: str
    after: str = ""
    begin: str = ""
    between: str = ""
    end: str = ""
    tag: TagWriting | None = None
    """Of each argument; None: the arguments are JSON, or in the notation of Format.pairs."""
    once: bool = False
    """The answer ends with its first call."""


NUMBER = "\0"


@dataclass(frozen=True, slots=True)
class Frames:
    """What models write around the parts of an answer, in formats that frame all of them."""

    reasoning: tuple[str, str]
    aside: tuple[str, str]
    """Text before the calls."""
    answer: str
    """Before the text with which the answer ends."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls."""

    name: str
    opens: Mapping[str, Go] = field(default_factory=dict)
    """Markers in the text that begin calls."""
    states: Mapping[str, State] = field(default_factory=dict)
    detect: tuple[tuple[str, ...], ...] = ()
    """Groups of texts: a chat template that has all texts of a group belongs to a model of this family."""
    start: str = TEXT
    """The state in which an answer begins."""
    call_name: str = f"(?P<name>{NAME})"
    """Regular expression of a whole name; a group `id` is the call's id."""
    json: JsonShape = JsonShape()
    pairs: PairNotation | None = None
    routes: tuple[tuple[str, str], ...] = ()
    """For HEADER: regular expressions -> the state of the first that is found; a group `name` is a call's."""
    header: str = "(?!)"
    """For HEADER: regular expression of a header's text that is cut before its first special token."""
    also: tuple[str, ...] = ()
    """Special tokens that are no markers but are read, such as quotes."""
    always: bool = False
    """The format frames all answers, not only those with calls."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits, as the template demands; else "call_" and 24 of them."""
    writing: Writing | None = None
    """None for a format without calls."""
    frames: Frames | None = None
    """For a format that frames all answers."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks around the reasoning. A prompt that ends with `open` begins the answer within it."""

    name: str
    open: str
    close: str
    detect: tuple[tuple[str, ...], ...] = ()
    around_text: tuple[str, ...] = ()
    """Marks that frame the text, and are none of it."""
