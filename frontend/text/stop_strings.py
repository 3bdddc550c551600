"""Stop strings, found while the text arrives in pieces.

One Knuth-Morris-Pratt automaton per stop string: its state is the length of the longest prefix of
the stop string that the text ends with. The largest state of all is therefore exactly what has to be
held back, and time is linear in the text, whatever the text is.
"""

import re
from collections.abc import Sequence


class StopStrings:
    """The stop strings of a request, compiled. Shared by its sequences."""

    def __init__(self, strings: Sequence[str], *, include: bool) -> None:
        """strings: not empty, none of them empty. include: a match stays in the text."""
        self.strings = tuple(strings)
        self.include = include
        self.failures = tuple(map(_failures, self.strings))
        # Text without any of these leaves idle automata idle: nearly all text of nearly all requests.
        firsts = "".join(sorted({string[0] for string in self.strings}))
        self.may_begin = re.compile(f"[{re.escape(firsts)}]").search


class StopMatcher:
    """Finds the stop string that completes first in one sequence's text; of several, the one that
    stands first in the list."""

    __slots__ = ("_stops", "_states", "_held")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._states = [0] * len(stops.strings)
        self._held = ""

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Takes a piece of text. Returns what can be shown now, and the stop string that matched.

        Not armed: a match that completes in this piece does not count, its text stays. After a match
        nothing more may be pushed.
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
        """The text is over: what was held back."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str, armed: bool) -> str | None:
        """Moves all automata by one character; returns the stop string that is complete with it."""
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
    """For each prefix: the length of its longest proper prefix that is also its suffix."""
    table = [0]
    state = 0
    for character in string[1:]:
        while state and string[state] != character:
            state = table[state - 1]
        if string[state] == character:
            state += 1
        table.append(state)
    return tuple(table)
