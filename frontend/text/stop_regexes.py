"""Finds the match of a regular expression that completes first, in text that arrives in pieces.

The match is the shortest text from the beginning whose end matches: it does not depend on how the text is
cut. Of several attempts that complete there the oldest counts, so that as much as possible is cut off.
"""

from frontend.text.regex_automaton import Automaton

MAX_HELD = 1024
"""Characters of an attempt that are held back. A match that is longer ends the sequence too, but its
beginning has been shown and stays."""


class RegexMatcher:
    """Attempts to match the expressions of an automaton within one text."""

    __slots__ = ("_automaton", "_state", "_begins", "_place")

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._state = automaton.start
        self._begins = [0]  # of the state's groups: where the attempts began
        self._place = 0

    def push(self, character: str) -> tuple[int, int] | None:
        """Consumes a character. Returns the first expression that matches here, and the match's length."""
        step = self._automaton.step(self._state, character)
        begins = self._begins
        self._place += 1
        self._state = step.state
        self._begins = [begins[index] for index in step.kept]
        if step.begins:
            self._begins.append(self._place)
        if step.matched is None:
            return None
        expression, group = step.matched
        return expression, self._place - begins[group]

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that a match may begin with, up to MAX_HELD."""
        return min(self._place - self._begins[0], MAX_HELD) if self._begins else 0
