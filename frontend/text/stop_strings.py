"""Finds stop strings, and regular expressions beside them, in text that arrives in pieces.

One automaton of Aho and Corasick follows all stop strings. Its state is the longest prefix of one that the
text ends with, which is exactly what must be held back, and the time is linear in the text, however many stop
strings there are. States are made when a text first reaches them: 64 strings of 1,024 characters have 65,536
prefixes, of which a text reaches a few.

A stop may be, or contain, a special token, which has no text in the output: it is followed by its letters,
and by its id, as a character of its own that is never shown.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from frontend.text.regex_automaton import Automaton, RegexMatcher

_FIRST_MARK, _MAX_MARKS = 0xDC00, 256


class Prefix:
    """A prefix of some strings, which are neighbours in their sorted order."""

    __slots__ = ("children", "depth", "fallback", "found", "high", "low")

    def __init__(self, low: int, high: int, depth: int) -> None:
        self.low, self.high = low, high  # the strings that begin with it: low to high - 1
        self.depth = depth
        """Characters of the prefix."""
        self.found: int | None = None
        """Of the strings that the text ends with, the first as they were given; None: it ends with none."""
        self.fallback: Prefix = self  # the longest other prefix that it ends with
        self.children: dict[str, Prefix] = {}  # those that were made


class PrefixAutomaton:
    """The automaton of some strings. All of a text takes time in proportion to its length, and no more steps
    from state to state than twice its characters."""

    def __init__(self, strings: Sequence[str]) -> None:
        """strings: none of them empty."""
        order = sorted(range(len(strings)), key=strings.__getitem__)
        self._strings = [strings[place] for place in order]
        self._order = order
        self.start = Prefix(0, len(strings), 0)
        """The state before a text."""
        self.num_steps = 0
        """From state to state, since the automaton was made."""

    def step(self, state: Prefix, character: str) -> Prefix:
        """Returns the state after another character. It may be a whole string; see settle()."""
        while True:
            self.num_steps += 1
            child = state.children.get(character)
            if child is None:
                child = self._make(state, character)
            if child is not None:
                return child
            if not state.depth:
                return state
            state = state.fallback

    def settle(self, state: Prefix) -> Prefix:
        """Returns the longest prefix that may still become a longer string than it is, where the text goes on
        behind a string."""
        while state.depth and len(self._strings[state.high - 1]) == state.depth:
            state = state.fallback
        return state

    def _make(self, state: Prefix, character: str) -> Prefix | None:
        """Makes the state of a prefix that is longer by a character, and those that it falls back to; returns
        None if no string has it."""
        made = list[Prefix]()
        while (child := state.children.get(character)) is None:
            if (child := self._child(state, character)) is not None:
                state.children[character] = child
                made.append(child)
            elif not made:
                return None
            if not state.depth:
                child = self.start
                break
            state = state.fallback
        for shorter, longer in zip([child, *reversed(made)], reversed(made), strict=False):
            longer.fallback = shorter
            own = self._own(longer)
            longer.found = min((found for found in (own, shorter.found) if found is not None), default=None)
        return made[0]

    def _child(self, state: Prefix, character: str) -> Prefix | None:
        """Returns a new state, without what it falls back to; None if no string has the prefix."""
        strings, depth = self._strings, state.depth

        def key(string: str) -> str:
            return string[depth : depth + 1]

        low = bisect_left(strings, character, state.low, state.high, key=key)
        if low == state.high or key(strings[low]) != character:
            return None
        return Prefix(low, bisect_right(strings, character, low, state.high, key=key), depth + 1)

    def _own(self, state: Prefix) -> int | None:
        """Returns which string the prefix is, the first of equals; None if it is shorter than all."""
        return self._order[state.low] if len(self._strings[state.low]) == state.depth else None


class StopStrings:
    """The compiled stops of a request, shared by its sequences."""

    def __init__(
        self,
        strings: Sequence[str],
        *,
        include: bool,
        regexes: Sequence[str] = (),
        silent: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """strings: none of them empty; at least one, or a regular expression. include: a match stays in the
        text. silent: tokens that have no text in the output, with their spelling. Raises RegexError."""
        self.strings = tuple(strings)
        self.include = include
        self.regexes = tuple(regexes)
        spelled = "\n".join([*strings, *(regex.replace("\\", "") for regex in regexes)])
        used = {token: text for token, text in silent.items() if text and text in spelled}
        self.marks = {
            token: chr(_FIRST_MARK + place) for place, token in enumerate(sorted(used)[:_MAX_MARKS])
        }
        """Token that a stop names -> the character by which it is followed; no text has it."""
        marks = sorted(
            ((used[token], mark) for token, mark in self.marks.items()), key=lambda pair: -len(pair[0])
        )
        self.automaton = None
        if self.regexes:
            self.automaton = Automaton([_with_marks(each, marks) for each in regexes])
        marked = [(_marked(string, marks), place) for place, string in enumerate(self.strings)]
        self.forms = [(string, place) for place, string in enumerate(self.strings)]
        self.forms += [each for each in marked if each not in self.forms]
        """The strings, as letters and with characters for tokens, each with its place among the strings."""
        self.prefixes = PrefixAutomaton([form for form, _ in self.forms])
        # Text without any of these characters (nearly all text) leaves an idle automaton idle.
        firsts = "".join(sorted({form[0] for form, _ in self.forms}))
        self.may_begin = re.compile(f"[{re.escape(firsts)}]" if firsts else "(?!)").search

    def without_marks(self, text: str) -> str:
        """Returns a text without the characters that stand for tokens."""
        for mark in self.marks.values():
            text = text.replace(mark, "")
        return text


class StopMatcher:
    """Finds the stop that completes first in a sequence's text; of several, the first stop string, then the
    first regular expression."""

    __slots__ = ("_stops", "_state", "_regexes", "_held", "by_regex")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._held = ""
        self.by_regex = False
        """What has matched is a regular expression."""
        self.restart()

    def restart(self) -> None:
        """Begins another text: no match begins before this place. What was held back has been flushed."""
        automaton = self._stops.automaton
        self._state = self._stops.prefixes.start
        self._regexes = RegexMatcher(automaton) if automaton is not None else None

    def mark(self, token: int) -> str:
        """Returns the character to push for a token without text; empty where no stop names it."""
        return self._stops.marks.get(token, "")

    def push(self, piece: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Consumes a piece of text. Returns the text that can be shown now, and the stop string or regular
        expression that matched.

        A match that completes while not armed does not count; its text stays. After a match nothing more may
        be pushed.
        """
        if self._regexes is None and not self._held and self._stops.may_begin(piece) is None:
            return self._stops.without_marks(piece), None
        text = self._held + piece
        border = 0  # what is before it is decided
        for end in range(len(self._held), len(text)):
            found = self._step(text[end], armed)
            if found is not None:
                stop, length = found
                cut = end + 1 if self._stops.include else max(border, end + 1 - length)
                self._held = ""
                return self._stops.without_marks(text[:cut]), stop
            border = max(border, end + 1 - self._num_held())
        self._held = text[border:]
        return self._stops.without_marks(text[:border]), None

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the text."""
        held, self._held = self._held, ""
        return self._stops.without_marks(held)

    def _num_held(self) -> int:
        """Returns how many characters at the end of the text a match may begin with."""
        depth = self._state.depth
        return depth if self._regexes is None else max(depth, self._regexes.num_held)

    def _step(self, character: str, armed: bool) -> tuple[str, int] | None:
        """Advances both automata by one character; returns the stop that it completes, and its length."""
        matched = self._step_strings(character)
        found = self._regexes.push(character) if self._regexes is not None else None
        if not armed:
            return None
        if matched is not None:
            form, place = self._stops.forms[matched]
            return self._stops.strings[place], len(form)
        if found is not None:
            self.by_regex = True
            return self._stops.regexes[found[0]], found[1]
        return None

    def _step_strings(self, character: str) -> int | None:
        prefixes = self._stops.prefixes
        state = prefixes.step(self._state, character)
        self._state = prefixes.settle(state)
        return state.found


def _marked(text: str, marks: Sequence[tuple[str, str]]) -> str:
    for token, mark in marks:
        text = text.replace(token, mark)
    return text


def _with_marks(regex: str, marks: Sequence[tuple[str, str]]) -> str:
    """Returns a regular expression that matches a token as letters and as its character. Within brackets
    letters have another meaning, and stay."""
    if not marks:
        return regex
    mark_of = {re.escape(token): mark for token, mark in marks}
    tokens = "|".join(map(re.escape, mark_of))
    parts = re.compile(rf"({tokens})|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)

    def replaced(found: re.Match[str]) -> str:
        return f"(?:{found[1]}|{mark_of[found[1]]})" if found[1] else found[0]

    return parts.sub(replaced, regex)
