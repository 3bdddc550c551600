"""Says which of several strings a text ends with, by the automaton of Aho and Corasick.

A state is a prefix of a string, the longest one that the text ends with. States are made when a text first
reaches them: 64 strings of 1,024 characters have 65,536 prefixes, of which a text reaches a few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


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
