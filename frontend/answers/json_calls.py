"""Reads one call that is a JSON object, as it arrives. Linear in the text."""

import json
import re
from enum import Enum, auto

from frontend.answers.tables import JsonShape
from frontend.answers.values import whole_text

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'["\\]')
_STRING = re.compile(r'"(?:[^"\\]++|\\[\s\S])*+"')
"""A string that has ended."""
_WITHIN = re.compile(rf"(?:[^\"{{}}\[\]]++|{_STRING.pattern})*+")
"""What stands between brackets. Neither pattern backtracks."""
_SCALAR = re.compile(r"[\w.+\-]*")


class Stage(Enum):
    """How far a call has got."""

    MORE = auto()
    """It goes on."""
    DONE = auto()
    """Its object is closed."""
    FAILED = auto()
    """It is no call; text from the place that feed() returned on has not been read."""


class _Expect(Enum):
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


class JsonCall:
    """One call, from behind its opening brace to its closing one."""

    def __init__(self, shape: JsonShape) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.stage = Stage.MORE
        self.is_call = False
        """Name and arguments are known to be there, so that name and id stay as they are."""
        self._has_arguments = False
        self._shape = shape
        self._pieces: list[str] = []
        self._expect = _Expect.KEY
        self._key: str | None = None
        self._captured: list[str] = []  # of a key, or of a value that is not streamed
        self._target = self._captured
        self._depth = 0
        self._in_string = self._in_value = self._escaped = self._scalar = False
        self._num_keys = 0

    def take_arguments(self) -> str:
        """Returns the arguments' text that has arrived since the last call of this method."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def feed(self, text: str) -> int:
        """Reads on, at most to where this turns out to be a call; returns the number of characters that were
        read."""
        at, was_call = 0, self.is_call
        while at < len(text) and self.stage is Stage.MORE and self.is_call == was_call:
            if self._in_string:
                at = self._string(text, at)
            elif self._scalar:
                at = self._rest_of_scalar(text, at)
            elif self._in_value:
                at = self._nested(text, at)
            else:
                at = _space(text, at)
                if at < len(text):
                    at = self._structure(text, at)
        return at

    def _structure(self, text: str, at: int) -> int:
        """Reads one character between the parts of the object; returns the place after it, if it fits."""
        character = text[at]
        match self._expect:
            case _Expect.KEY if character == '"':
                if (whole := _STRING.match(text, at)) is not None:
                    self._captured = [whole[0]]
                    self._end_key()
                    return whole.end()
                self._captured = self._target = ['"']
                self._in_string = True
            case _Expect.COLON if character == ":":
                self._expect = _Expect.VALUE
            case _Expect.COMMA if character == ",":
                self._expect = _Expect.KEY
            case _Expect.COMMA | _Expect.KEY if character == "}" and self.name is not None:
                self.stage, self.is_call = Stage.DONE, True
            case _Expect.VALUE:
                return self._begin_value(text, at)
            case _:
                self.stage = Stage.FAILED
                return at
        return at + 1

    def _begin_value(self, text: str, at: int) -> int:
        character = text[at]
        if self._is_arguments and (character not in '{"n' or self._has_arguments):
            self.stage = Stage.FAILED
            return at
        self._captured = []
        streams = self._is_arguments and character == "{"
        self._target = self._pieces if streams else self._captured
        if streams:
            self._has_arguments, self.is_call = True, self.name is not None
        if character in "{[":
            self._depth, self._in_value = 1, True
        elif character == '"' and (whole := _STRING.match(text, at)) is not None:
            self._captured.append(whole[0])
            self._end_value()
            return whole.end()
        elif character == '"':
            self._in_value = self._in_string = True
        elif character.isalnum() or character == "-":
            self._in_value = self._scalar = True
            return at
        else:
            self.stage = Stage.FAILED
            return at
        self._keep(character)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._keep(text[at])
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        end = found.end() if found is not None else len(text)
        self._keep(text[at:end])
        if found is not None and found[0] == "\\":
            self._escaped = True
        elif found is not None:
            self._in_string = False
            if not self._in_value:
                self._end_key()
            elif not self._depth:
                self._end_value()
        return end

    def _rest_of_scalar(self, text: str, at: int) -> int:
        found = _SCALAR.match(text, at)
        end = found.end() if found is not None else at
        self._keep(text[at:end])
        if end < len(text):
            self._scalar = False
            self._end_value()
        return end

    def _nested(self, text: str, at: int) -> int:
        found = _WITHIN.match(text, at)
        end = found.end() if found is not None else at
        stop = text[end : end + 1]
        self._keep(text[at : end + 1])
        if stop == '"':
            self._in_string = True
        elif stop:
            self._depth += 1 if stop in "{[" else -1
            if not self._depth:
                self._end_value()
        return end + len(stop)

    @property
    def _is_arguments(self) -> bool:
        return self._key is not None and (self._shape.keyed or self._key in self._shape.arguments)

    def _keep(self, text: str) -> None:
        self._target.append(text)

    def _end_key(self) -> None:
        self._key = _decoded("".join(self._captured))
        self._num_keys += 1
        self._expect = _Expect.COLON
        shape = self._shape
        if shape.keyed and self._num_keys == 1 and self._key is not None:
            self.name = self._key
            return
        known = (shape.name, shape.id, *shape.arguments, *shape.ignored)
        twice = self._key == shape.name and self.name is not None
        if shape.keyed or twice or (self._key not in known and not self.is_call):
            self.stage = Stage.FAILED

    def _end_value(self) -> None:
        self._in_value = False
        self._expect = _Expect.COMMA
        if self._target is self._pieces:
            return
        text = "".join(self._captured)
        value = _decoded(text)
        if self._is_arguments and (value is not None or text == "null"):  # JSON text as a string, or none
            self._pieces.append(value or "")
            self._has_arguments = True
        elif self._is_arguments or (self._key == self._shape.name and value is None):
            self.stage = Stage.FAILED
        elif self._key == self._shape.name:
            self.name = value
        elif self._key == self._shape.id and not self.is_call:
            self.id = value
        self.is_call |= self._has_arguments and self.name is not None


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at


def _decoded(text: str) -> str | None:
    """Returns the string that a JSON text is; None: it is none."""
    if "\\" not in text and _STRING.fullmatch(text) is not None:
        return text[1:-1]
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return whole_text(value) if isinstance(value, str) else None
