"""Outputs of one tenant, and what followed a run of tokens in them: bounded memory, O(1) per token.

Outputs stand one behind the other. A table holds the place behind the latest occurrence of each run of 4
tokens; runs across two outputs are left out. There are two such texts: once the young one is half of what may
be kept, it becomes the old one, and the old one is gone. Runs are looked for in the young one first.
"""

from array import array
from collections.abc import Sequence

RUN = 4


class _Text:
    """Outputs that are kept together."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self._places: dict[tuple[int, ...], int] = {}

    def add(self, output: Sequence[int]) -> None:
        """Appends an output."""
        begin = len(self.tokens)
        self.tokens.extend(output)
        runs = zip(*(output[i:] for i in range(RUN)), strict=False)
        self._places.update(zip(runs, range(begin + RUN, len(self.tokens)), strict=False))

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed the run; none: it is not known."""
        place = self._places.get(run)
        return self.tokens[place : place + most].tolist() if place is not None else []


class SharedTexts:
    """What is kept of one tenant."""

    def __init__(self, most: int) -> None:
        """most: tokens that are kept; tables of some hundred bytes per token come with them."""
        self._half = max(1, most // 2)
        self._young, self._old = _Text(), _Text()

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept."""
        return len(self._young.tokens) + len(self._old.tokens)

    def add(self, output: Sequence[int]) -> None:
        """Keeps an output, of a long one its end."""
        output = output[-self._half :]
        if len(self._young.tokens) + len(output) > self._half:
            self._young, self._old = _Text(), self._young
        self._young.add(output)

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed a run of RUN tokens; none: it is not known."""
        return self._young.follow(run, most) or self._old.follow(run, most)
