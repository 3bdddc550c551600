"""Finds stop strings in text that arrives in pieces.

Each stop string has a Knuth-Morris-Pratt automaton, whose state is the length of its longest prefix that the
text ends with. So the largest state is exactly what must be held back, and the time is linear in the text.
"""

import re
from collections.abc import Sequence


class StopStrings:
    """The compiled stop strings of a request, shared by its sequences."""

    def __init__(self, strings: Sequence[str], *, include: bool) -> None:
        """strings: at least one, none of them empty. include: a match stays in the text."""
        self.strings = tuple(strings)
        self.include = include
        self.failures = tuple(map(_failures, self.strings))
        # Text without any of these characters (nearly all text) leaves idle automata idle.
        firsts = "".join(sorted({string[0] for string in self.strings}))
        self.may_begin = re.compile(f"[{re.escape(firsts)}]").search


class StopMatcher:
    """Finds the stop string that completes first in a sequence's text; of several, the first in the list."""

    __slots__ = ("_stops", "_states", "_held")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._states = [0] * len(stops.strings)
        self._held = ""

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Consumes a piece of text. Returns the text that can be shown now, and the stop string that matched.

        A match that completes while not armed does not count; its text stays. After a match nothing more may
        be pushed.
        """
        if not self._held and self._stops.may_begin(piece) is None:
            return piece, None
        text = self._held + piece
        for end in range(len(self._held), len(text)):
            stop = self._step(text[end], armed)
            if stop is not None:
                cut = end + 1 if self._stops.include else end + 1 - len(stop)
                self._held = ""
                return text[:cut], stop
        border = len(text) - max(self._states)
        self._held = text[border:]
        return text[:border], None

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str, armed: bool) -> str | None:
        """Advances all automata by one character; returns the stop string that it completes."""
        matched = None
        for place, (string, failures) in enumerate(
            zip(self._stops.strings, self._stops.failures, strict=True)
        ):
            state = self._states[place]
            while state and string[state] != character:
                state = failures[state - 1]
            if string[state] == character:
                state += 1
            if state == len(string):
                if armed and matched is None:
                    matched = string
                state = failures[state - 1]
            self._states[place] = state
        return matched


def _failures(string: str) -> tuple[int, ...]:
    """Returns, for each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0]
    state = 0
    for character in string[1:]:
        while state and string[state] != character:
            state = table[state - 1]
        if string[state] == character:
            state += 1
        table.append(state)
    return tuple(table)
