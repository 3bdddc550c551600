"""Automata of regular expressions: all attempts to match are followed at once, so that time is linear.

A node waits for one character, and is a bit of an integer. What a state becomes behind a character is
computed once, and kept: few states and kinds of characters occur.

A match is the shortest text from the beginning whose end matches: it does not depend on how the text is cut.
Of several attempts that complete there the oldest counts, so that as much as possible is cut off.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from frontend.text.regex_syntax import Beginning, Either, Part, RegexError, Repeat, Single, parse

MAX_NODES = 512
"""Of all expressions of a request: characters and classes, each as often as repetition unfolds it."""
MAX_KEPT = 20_000
"""Sets of nodes, and characters, that are kept: some 2 MB."""

_TEXT, _LINE = 1, 2
"""Conditions of a place: that the text begins there, that a line does."""
MAX_HELD = 1024
"""Characters of an attempt that are held back. A match that is longer ends the sequence too, but its
beginning has been shown and stays."""


@dataclass(slots=True)
class _Fork:
    """Goes on at several places without a character."""

    places: list[int]
    condition: int = 0
    """0: anywhere."""


@dataclass(frozen=True, slots=True)
class _Node:
    """Waits for a character that fits. following: the place behind it; -1: a match is complete here."""

    bit: int
    following: int = -1


class _Places:
    """Places in expressions. An expression is built from its end: what follows a part is known."""

    def __init__(self) -> None:
        self.places: list[_Fork | _Node] = []
        self.tests: dict[re.Pattern[str], int] = {}
        """The nodes that wait for a character, by what fits them."""
        self._num_nodes, self._num_singles = 0, 0
        self._left = 20 * MAX_NODES

    def fork(self, places: list[int], condition: int = 0) -> int:
        return self._add(_Fork(places, condition))

    def match(self) -> int:
        """Adds the end of an expression."""
        return self._add(_Node(self._bit()))

    def build(self, part: Part, following: int) -> int:
        """Adds a part before the place that follows it, and returns where it begins. Raises RegexError."""
        self._left -= 1
        self._num_singles += isinstance(part, Single)
        if self._left < 0 or self._num_singles > MAX_NODES:
            raise RegexError(f"needs more than {MAX_NODES} states: it is too long, or repeats too much")
        if isinstance(part, Single):
            bit, test = self._bit(), re.compile(part.source, part.flags)
            self.tests[test] = self.tests.get(test, 0) | bit
            return self._add(_Node(bit, following))
        if isinstance(part, Beginning):
            return self.fork([following], _LINE if part.lines else _TEXT)
        if isinstance(part, Either):
            return self.fork([self.build(each, following) for each in part.parts])
        if isinstance(part, Repeat):
            return self._repeat(part, following)
        for each in reversed(part.parts):
            following = self.build(each, following)
        return following

    def _repeat(self, repeat: Repeat, following: int) -> int:
        place = following
        if repeat.most is None:
            place = self.fork([])
            loop = self.places[place]
            assert isinstance(loop, _Fork)
            loop.places += [self.build(repeat.part, place), following]
        else:
            for _ in range(repeat.most - repeat.least):
                place = self.fork([self.build(repeat.part, place), following])
        for _ in range(repeat.least):
            place = self.build(repeat.part, place)
        return place

    def _bit(self) -> int:
        self._num_nodes += 1
        return 1 << (self._num_nodes - 1)

    def _add(self, place: _Fork | _Node) -> int:
        self.places.append(place)
        return len(self.places) - 1


@dataclass(slots=True, eq=False)
class Attempts:
    """What all attempts to match wait for. groups: disjoint sets of nodes by attempt, the oldest first: of
    two attempts that wait for the same, the younger one can find nothing that the older one does not."""

    groups: tuple[int, ...]
    steps: "dict[tuple[int, bool], Step]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What a character does to a state."""

    state: Attempts
    kept: tuple[int, ...]
    """Indexes of the groups that go on."""
    begins: bool
    """One more attempt begins behind the character."""
    matched: tuple[int, int] | None
    """The expression that matches here (of several, the first), and the oldest group that completes it."""


class Automaton:
    """Some expressions."""

    def __init__(self, sources: Sequence[str]) -> None:
        """Raises RegexError."""
        built = _Places()
        ends = [built.match() for _ in sources]
        entries = []
        for index, (source, end) in enumerate(zip(sources, ends, strict=True)):
            try:
                entries.append(built.build(parse(source), end))
            except RegexError as error:
                raise RegexError(str(error), index) from None
        self._complete = (1 << len(sources)) - 1
        """The ends: bit i is that of expression i."""
        self._start = built.fork(entries)
        self._places, self._tests = built.places, tuple(built.tests.items())
        self._following = {
            place.bit.bit_length() - 1: place.following
            for place in built.places
            if isinstance(place, _Node) and place.following >= 0
        }
        self._closures: dict[tuple[int, int], int] = {}
        self._signatures: dict[str, int] = {}
        self._states: dict[tuple[int, ...], Attempts] = {}
        self._num_kept = 0
        for conditions in (0, _LINE, _TEXT | _LINE):
            if empty := self._closure(self._start, conditions) & self._complete:
                raise RegexError("matches the empty text", _lowest(empty))
        self.start = self._state((self._closure(self._start, _TEXT | _LINE),))

    def step(self, state: Attempts, character: str) -> Step:
        """Returns what a character does to a state."""
        signature = self._signatures.get(character)
        if signature is None:
            fitting = (bits for test, bits in self._tests if test.match(character))
            signature = self._signatures[character] = sum(fitting)
            self._keep(1)
        key = signature, character == "\n"
        step = state.steps.get(key)
        if step is None:
            step = state.steps[key] = self._compute(state, *key)
            self._keep(1 + len(step.state.groups))
        return step

    def _compute(self, state: Attempts, signature: int, is_line_feed: bool) -> Step:
        conditions = _LINE if is_line_feed else 0
        groups: list[int] = []
        kept: list[int] = []
        matched: tuple[int, int] | None = None
        seen = 0
        for index, group in enumerate(state.groups):
            entered = self._behind(group & signature, conditions)
            if complete := entered & self._complete:
                found = _lowest(complete), index
                matched = found if matched is None else min(matched, found)
            if fresh := entered & ~(seen | self._complete):
                groups.append(fresh)
                kept.append(index)
                seen |= fresh
        begun = self._closure(self._start, conditions) & ~seen
        if begun:
            groups.append(begun)
        return Step(self._state(tuple(groups)), tuple(kept), begun != 0, matched)

    def _behind(self, nodes: int, conditions: int) -> int:
        """Returns the nodes that are entered behind a character that fits these."""
        entered = 0
        while nodes:
            node = _lowest(nodes)
            nodes &= nodes - 1
            entered |= self._closure(self._following[node], conditions)
        return entered

    def _closure(self, place: int, conditions: int) -> int:
        """Returns the nodes that a place leads to without a character, where these conditions hold."""
        key = place, conditions
        found = self._closures.get(key)
        if found is None:
            found, seen, left = 0, {place}, [place]
            while left:
                current = self._places[left.pop()]
                if isinstance(current, _Node):
                    found |= current.bit
                elif not current.condition & ~conditions:
                    left += [each for each in current.places if each not in seen]
                    seen.update(current.places)
            self._closures[key] = found
        return found

    def _state(self, groups: tuple[int, ...]) -> Attempts:
        return self._states.setdefault(groups, Attempts(groups))

    def _keep(self, size: int) -> None:
        """Counts what is kept, and forgets all of it where it is too much."""
        self._num_kept += size
        if self._num_kept > MAX_KEPT:
            self._num_kept = 0
            for state in self._states.values():
                state.steps.clear()
            self._states.clear()
            self._signatures.clear()


def _lowest(bits: int) -> int:
    """Returns the number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


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
