"""Runs a format's table over the text of an answer. The machine's state is a function of the characters that
it has read, however they were cut into pieces.

A special token that a table names arrives as one character of its own (frontend.answers.binding), so that
text cannot imitate it. What does not parse as a call is text.
"""

import re
from collections.abc import Callable

from frontend.answers.binding import BoundFormat
from frontend.answers.call_writer import CallWriter, NestedValue, Schemas, nested_value
from frontend.answers.events import Event, EventSink
from frontend.answers.json_calls import JsonCall, Stage
from frontend.answers.pairs import PairReader
from frontend.answers.tables import REASONING, TEXT, Go, Take

MAX_PART = 256
"""Characters of a name, an id, a key or a header; a longer one is text."""
_PIECE = 2048
"""Characters that are read in one go, so that the time is linear in an answer of any length: each part that
is read is cut off, which copies the rest."""
_NAME = re.compile(r"\s*[\w.:\-]*\s*")
_BETWEEN = re.compile(r"[ \t\r\n,;]+|[\[\]]")
"""Text between calls that are JSON objects. A bracket may also begin a marker."""
_SAID = (Take.TEXT, Take.REASONING)
_BETWEEN_CALLS = (Take.GAP, Take.JSON)
_SAYS_MORE = (*_SAID, Take.ID, Take.KEY, Take.VALUE)


class Machine:
    """Reads one answer."""

    def __init__(
        self,
        table: BoundFormat,
        schemas: Schemas,
        new_id: Callable[[int], str],
        *,
        state: str,
        keep_marks: bool = False,
    ) -> None:
        """schemas, new_id: see CallWriter. state: where the prompt left the answer. keep_marks: special
        tokens that turn out to be text are shown."""
        self._table = table
        self._shown = table.literal if keep_marks else table.without_marks
        self._sink = EventSink(after_mark=state == REASONING)
        self._calls = CallWriter(self._sink, schemas, new_id)
        self._buffer = ""
        self._raw: list[str] = []  # read since the last text, while no call is open
        self._has_called = False  # since the last text
        self._part: list[str] = []  # of the name, key or value that is being read
        self._part_size = 0
        self._name = self._key = ""
        self._json: JsonCall | None = None
        self._pairs: PairReader | None = None
        self._nested: NestedValue | None = None  # the value that is being read, if it is an object or a list
        steps = {
            Take.GAP: self._gap,
            Take.JSON: self._json_objects,
            Take.PAIRS: self._pair_list,
            **dict.fromkeys((Take.NAME, Take.ID, Take.KEY, Take.HEADER), self._short),
        }
        self._steps = {name: steps.get(each.take, self._long) for name, each in table.states.items()}
        self._enter(state)

    @property
    def is_reasoning(self) -> bool:
        """True within the reasoning."""
        return self._state.take is Take.REASONING

    def feed(self, text: str) -> list[Event]:
        """Reads a piece of the answer; returns what it decides."""
        for start in range(0, len(text), _PIECE):
            self._buffer += text[start : start + _PIECE]
            while self._buffer and self._step():
                pass
        return self._sink.take()

    def finish(self) -> list[Event]:
        """Returns what was held back, at the end of the answer."""
        rest, self._buffer = self._buffer, ""
        take = self._state.take
        if take in _SAID:
            self._say(rest)
        elif self._calls.is_open:
            if take is Take.ARGUMENTS:
                self._calls.write(self._table.literal(rest))
            self._calls.end(cut=take is not Take.ARGUMENTS or not self._calls.has_arguments)
        elif self._json is not None and (name := self._name_of(self._json)) is not None:
            self._start(name, self._json.id or "")  # cut before its arguments
            self._calls.end(cut=True)
        elif take is not Take.HEADER or not self._table.begins_header("".join(self._part) + rest):
            self._sink.text(self._shown("".join(self._raw) + rest))
        self._enter(TEXT)
        self._sink.finish()
        return self._sink.take()

    # One step each: False when more text is needed.

    def _long(self) -> bool:
        """Text of any length, up to a marker."""
        found, end = self._find_marker()
        is_quoted = found is not None and self._is_quoted(found)
        end += is_quoted  # go on behind the first character of what only looks like a marker
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        if self._state.take in _SAID:
            self._say(text)
        elif self._state.take is Take.ARGUMENTS:
            self._calls.write(self._table.literal(text))
        else:
            self._part.append(text)
            self._record(text)
            if self._nested is not None:
                self._nested.add(text)
        if found is None:
            return False
        if not is_quoted:
            self._follow(found[0])
        return True

    def _find_marker(self) -> tuple[re.Match[str] | None, int]:
        """Returns the first marker, and the end of the text that is decided before it."""
        found = self._table.find(self._state_name, self._buffer)
        if found is not None:
            return found, found.start()
        return None, len(self._buffer) - self._table.undecided(self._state_name, self._buffer)

    def _is_quoted(self, found: re.Match[str]) -> bool:
        """Returns whether text that is spelled like a marker stands in a string of JSON."""
        reads_json = self._state.take is Take.ARGUMENTS or self._nested is not None
        if not reads_json or self._table.find_mark(found[0]) is not None:
            return False
        before = self._buffer[: found.start()]
        return self._calls.in_string(before) if self._nested is None else self._nested.in_string(before)

    def _short(self) -> bool:
        """A name, an id, a key or a header, up to a marker."""
        found, end = self._find_marker()
        text = self._buffer[:end]
        fits = min(self._fitting(text), MAX_PART - self._part_size)
        self._part.append(text[:fits])
        self._part_size += fits
        self._drop(fits)
        if fits < len(text):
            return self._fail()
        if found is None:
            return False
        self._follow(found[0])
        return True

    def _fitting(self, text: str) -> int:
        """Returns how much of a text a part of this kind may have."""
        if self._state.take is not Take.NAME:
            return len(text)
        found = _NAME.match("".join(self._part) + text)
        return found.end() - self._part_size if found is not None else 0

    def _gap(self) -> bool:
        """Blank text, and a marker."""
        self._skip(len(self._buffer) - len(self._buffer.lstrip()))
        if not self._buffer:
            return False
        marker = self._table.at_start(self._state_name, self._buffer)
        if marker is not None:
            self._follow(marker)
            return True
        return not self._table.may_begin(self._state_name, self._buffer) and self._fail()

    def _json_objects(self) -> bool:
        """Calls that are JSON objects, and what is between them."""
        return self._between_json() if self._json is None else self._json_call(self._json)

    def _between_json(self) -> bool:
        marker = self._table.at_start(self._state_name, self._buffer)
        if marker is not None:
            self._follow(marker)
        elif self._buffer[0] == "{":
            self._drop(1)
            self._json = JsonCall(self._table.format.json)
        elif self._table.may_begin(self._state_name, self._buffer):
            return False
        elif (found := _BETWEEN.match(self._buffer)) is not None:
            self._skip(found.end())
        else:
            return self._fail()
        return True

    def _json_call(self, call: JsonCall) -> bool:
        mark = self._table.find_mark(self._buffer)
        self._drop(call.feed(self._buffer if mark is None else self._buffer[:mark]))
        if call.is_call and not self._calls.is_open:
            name = self._name_of(call)
            if name is None:
                return self._fail()
            self._start(name, call.id or "")
            self._calls.write(call.take_arguments())
            if call.stage is Stage.MORE:
                return True
        if self._calls.is_open:
            self._calls.write(call.take_arguments())
        if call.stage is Stage.FAILED or (call.stage is Stage.MORE and self._buffer):
            return self._fail()
        if call.stage is Stage.MORE:
            return False
        self._json = None
        self._calls.end()
        return True

    def _name_of(self, call: JsonCall) -> str | None:
        found = self._table.call_name.fullmatch(call.name or "")
        return found["name"] if found is not None else None

    def _pair_list(self) -> bool:
        assert self._pairs is not None
        read, written = self._pairs.feed(self._buffer)
        self._drop(read)
        self._calls.write(written)
        if not self._pairs.done:
            return False
        self._calls.end(lost=self._pairs.lost)
        self._enter(self._state.then)
        return True

    # Transitions.

    def _follow(self, marker: str) -> None:
        """Follows a marker at the beginning of the buffer."""
        step, part = self._state.markers[marker], "".join(self._part)
        take, target = self._state.take, self._table.states[step.to].take
        if take is Take.NAME and not self._is_name(part, starts=target is not Take.ID):
            self._fail()
            return
        if self._table.format.always:  # its markers frame text, too
            self._buffer = self._buffer[len(marker) :]
        else:
            self._drop(len(marker))
        if take is Take.HEADER:
            self._route(part)
            return
        if take in _SAYS_MORE:
            self._end_part(take, self._table.literal(part), step, target)
        if step.ends and self._calls.is_open:
            self._calls.end()
        self._enter(step.to)
        if target is Take.HEADER:
            self._part, self._part_size = [marker], len(marker)

    def _end_part(self, take: Take, part: str, step: Go, target: Take) -> None:
        """Does what the end of a part means besides the step to the next state."""
        match take:
            case Take.ID:
                self._start(self._name, part.strip())
            case Take.KEY:
                self._key = part.strip()
            case Take.VALUE:
                self._calls.member(self._key, part, step.value)
            case Take.REASONING:
                self._sink.mark()
                self._raw.clear()
            case Take.TEXT if target in _SAID:
                self._sink.mark()
            case _:
                pass

    def _is_name(self, part: str, *, starts: bool) -> bool:
        """Takes a name, and starts its call. Returns False for what is none."""
        found = self._table.call_name.fullmatch(part.strip())
        if found is None:
            return False
        self._name = found["name"]
        if starts:
            self._start(self._name, found.groupdict().get("id") or "")
        return True

    def _start(self, name: str, own_id: str) -> None:
        self._raw.clear()
        self._has_called = True
        self._calls.start(name, own_id)

    def _route(self, header: str) -> None:
        """Enters the state that a message's header names."""
        text = self._table.literal(header)
        self._sink.mark()
        for pattern, state in self._table.routes:
            found = pattern.search(text)
            if found is not None:
                if (name := found.groupdict().get("name")) is not None:
                    self._start(name, "")
                self._enter(state)
                return
        self._enter(TEXT)

    def _enter(self, name: str) -> None:
        self._state_name, self._state = name, self._table.states[name]
        self._step, take = self._steps[name], self._state.take
        self._part, self._part_size = [], 0
        if self._has_called and take in _BETWEEN_CALLS:
            self._raw.clear()
        if take in _SAID:
            self._raw.clear()
            self._has_called = False
        elif take is Take.PAIRS and self._table.pairs is not None:
            self._pairs = PairReader(self._table.pairs, self._table.literal)
        self._nested = None
        if take is Take.VALUE:
            styles = {step.value for step in self._state.markers.values()}
            self._nested = nested_value(styles, self._calls.schema_of(self._key))

    def _fail(self) -> bool:
        """This is no call: what has been read of it is text, and the rest of the answer is read as text."""
        text = "".join(self._raw)
        self._json = None
        if self._calls.is_open:
            self._calls.end(cut=True)
        self._enter(TEXT)
        self._sink.text(self._shown(text))
        return True

    def _say(self, text: str) -> None:
        said = self._sink.reasoning if self._state.take is Take.REASONING else self._sink.text
        said(self._shown(text))

    def _skip(self, count: int) -> None:
        """Drops what stands between calls; before the first call it may still be text."""
        if not self._has_called:
            self._record(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _drop(self, count: int) -> None:
        self._record(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _record(self, text: str) -> None:
        if not self._calls.is_open:
            self._raw.append(text)
