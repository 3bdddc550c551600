"""The state of one row's grammar: which tokens may come next.

It is a function of the grammar and of the row's output, so that a row that is resumed, preempted or moved to
another worker has the same masks. The library's matcher can also be copied (forks) and rolled back.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pagewire.limits import is_panic

Words = npt.NDArray[np.int32]
"""[W] int32, W = ceil(V / 32): bit i of word w is set when token 32 w + i is allowed."""

UNFIT = "the output before does not fit the grammar"
TOO_MUCH = "the grammar takes more work here than a token may: its rules or repetitions multiply"
"""An error of the library behind tokens that its masks allowed: one of pagewire.limits.PARSER_LIMITS."""


class Matcher(Protocol):
    """What is used of llguidance.LLMatcher. Errors are a state that it never leaves."""

    def consume_tokens(self, sampled_tokens: list[int]) -> bool:
        """Advances behind tokens."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int) -> None:
        """Writes the mask of the next token."""

    def compute_ff_tokens(self) -> list[int]:
        """Returns the tokens of the text that must follow; [] if several may."""

    def deep_copy(self) -> "Matcher":
        """Returns an independent copy."""

    def is_stopped(self) -> bool:
        """Returns whether nothing but EOS can follow, or an error has occurred."""

    def is_error(self) -> bool:
        """Returns whether an error has occurred."""


class RowMatcher:
    """A matcher, and the mask of the token that follows. An error leaves a mask without any token."""

    def __init__(self, matcher: Matcher | None, num_words: int, error: str = "") -> None:
        """matcher: of this row alone; None: there is none, because of the error."""
        self._matcher = matcher
        self.words: Words = np.zeros(num_words, np.int32)
        self.address: int = self.words.ctypes.data
        """Of the words, which stay there."""
        self.error = error
        """Why the row cannot go on; "": it can."""

    def begin(self, output_ids: Sequence[int]) -> None:
        """Advances behind the output that a row begins with, and computes the mask."""
        self._guard(lambda matcher: _consume(matcher, output_ids))
        if self.error:
            self.error = UNFIT
        self._guard(self._fill)

    def advance(self, token: int) -> None:
        """Advances behind one more token, and computes the mask."""
        self._guard(lambda matcher: _consume(matcher, [token]))
        self._guard(self._fill)

    def forced(self) -> list[int]:
        """Returns the tokens of the text that must follow, as the tokenizer would write it; none where
        several texts may.

        The row may write it in other tokens. Nothing of the row changes: the text passes no state of the
        grammar that the row does not have to pass.
        """
        if self._matcher is None or self.error:
            return []
        try:
            copy = self._matcher.deep_copy()
            return [] if copy.is_stopped() else copy.compute_ff_tokens()
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            return []

    def fork(self) -> "RowMatcher":
        """Returns a copy that goes its own way."""
        copy = RowMatcher(None, len(self.words), self.error)
        copy.words[:] = self.words

        def separate(matcher: Matcher) -> None:
            copy._matcher = matcher.deep_copy()

        self._guard(separate)
        return copy

    def _fill(self, matcher: Matcher) -> None:
        matcher.unsafe_compute_mask_ptr(self.address, self.words.nbytes)

    def _guard(self, run: Callable[[Matcher], None]) -> None:
        """Runs a part; its failure ends this row and no other. In its error state the library would allow
        EOS: an output that is cut would look complete."""
        if self._matcher is None or self.error:
            return
        try:
            run(self._matcher)
            if self._matcher.is_error():
                self.error = TOO_MUCH
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            self.error = "the library that matches grammars fails on this one"
        if self.error:
            self.words[:] = 0


def _consume(matcher: Matcher, tokens: Sequence[int]) -> None:
    if tokens and not matcher.is_stopped():  # behind EOS a step in flight may sample once more
        matcher.consume_tokens(list(tokens))
