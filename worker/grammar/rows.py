"""Rows that have grammars, and the masks of their next tokens.

A mask is computed in a thread as soon as the token before it is known, while the model computes the next
logits; the output of a resumed row is re-read while its prompt is computed. words() waits for what is not
ready; the core sends rows whose grammars are compiled.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import worker_pb2
from worker.grammar.compiler import GrammarCompiler, GrammarError
from worker.grammar.matcher import Matcher, RowMatcher

T = TypeVar("T")

NUM_THREADS = 2
ROWS_PER_TASK = 16
"""At least, where rows advance: fewer are not worth a task."""
NO_ENGINE = "this worker has no grammars"


@dataclass(slots=True)
class _Row:
    """A row's matcher, among those of one task, once the task is done. A future costs more than to advance by
    a token: rows that advance together share one."""

    ready: "Future[list[RowMatcher]]"
    index: int = 0
    copies: "list[Future[list[RowMatcher]]]" = field(default_factory=list)
    """What is being made of it: it must not advance before."""


class GrammarRows:
    """Matchers by row. A worker.step.plan_reader.RowFeature, and independent of the device.

    Tasks of the pool never wait for one another: a task is submitted once all that it needs is done.
    """

    is_elsewhere = False
    """Whether another rank masks and chooses: then no row begins here."""

    def __init__(self, vocab_size: int, compiler: GrammarCompiler | None) -> None:
        """compiler: None where rows cannot have grammars; one that comes with a grammar fails."""
        self.num_words = -(-vocab_size // 32)
        self._compiler = compiler
        self._rows: dict[int, _Row] = {}
        self._errors: dict[int, str] = {}
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar-masks")

    @property
    def engine(self) -> str:
        """What computes masks; "": nothing does."""
        return self._compiler.engine if self._compiler is not None else ""

    def __contains__(self, row: object) -> bool:
        return row in self._rows

    def compile(self, grammar: str) -> "Future[Matcher]":
        """Compiles a grammar that rows will have; its future raises GrammarError."""
        if self._compiler is not None:
            return self._compiler.compile(grammar)
        none: Future[Matcher] = Future()
        none.set_exception(GrammarError(NO_ENGINE))
        return none

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: output that the sequence already has."""
        self.remove_row(row)
        if not new.grammar or self.is_elsewhere:
            return
        if self._compiler is None:
            failed = RowMatcher(None, self.num_words, NO_ENGINE)
            self._rows[row] = _Row(self._pool.submit(lambda: [failed]))
            return
        compiled = self._compiler.compile(new.grammar)
        self._rows[row] = _Row(self._after(compiled, lambda: self._begin(compiled, output_ids)))

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        self.remove_row(row)
        source = self._rows.get(source_row)
        if source is not None:
            ready = source.ready
            index = source.index
            copy = self._after(ready, lambda: ready.result()[index].fork())
            source.copies.append(copy)
            self._rows[row] = _Row(copy)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self._rows.pop(row, None)
        self._errors.pop(row, None)

    def users(self, rows: Iterable[int]) -> list[int]:
        """Returns the indexes [U] of those of the rows [A] that have grammars."""
        return [index for index, row in enumerate(rows) if row in self._rows] if self._rows else []

    def words(self, rows: Sequence[int]) -> npt.NDArray[np.int32]:
        """Returns the masks [U, W] of the next tokens of rows [U] that have grammars: see matcher.Words.

        A row that cannot go on has a mask without any token.
        """
        masks = [matcher.words for matcher in self.matchers(rows)]
        return np.stack(masks) if masks else np.zeros((0, self.num_words), np.int32)

    def matchers(self, rows: Sequence[int]) -> list[RowMatcher]:
        """Returns the matchers [U] of rows that have grammars, once they have the masks of the next tokens.

        They keep these until the rows are recorded or removed.
        """
        matchers = _settled([self._rows[row] for row in rows])
        self._errors |= {row: one.error for row, one in zip(rows, matchers, strict=True) if one.error}
        return matchers

    def forced(self, row: int) -> list[int]:
        """Returns tokens of the text that a row's grammar forces; none: nothing is forced, or the row has no
        grammar. Waits for what is not ready."""
        state = self._rows.get(row)
        return _settled([state])[0].forced() if state is not None else []

    def errors(self, rows: Sequence[int]) -> dict[int, str]:
        """Returns why rows had masks without any token, by index into the rows [A]."""
        if not self._errors:
            return {}
        return {index: self._errors[row] for index, row in enumerate(rows) if row in self._errors}

    def record(self, rows: Sequence[int], tokens: Callable[[], Sequence[int] | Integers]) -> None:
        """Advances rows [A] behind their new tokens, in threads.

        tokens: returns them, [A], negative: the row has none; called in a thread, and may wait for a device.
        """
        users = self.users(rows)
        size = max(ROWS_PER_TASK, -(-len(users) // NUM_THREADS))
        for start in range(0, len(users), size):
            members = users[start : start + size]
            states = [self._rows[rows[member]] for member in members]
            ready = self._pool.submit(_advance, _settled(states), members, tokens)
            for index, state in enumerate(states):
                state.ready, state.index = ready, index

    def _after(self, needed: "Future[T]", run: Callable[[], RowMatcher]) -> "Future[list[RowMatcher]]":
        """Returns the result of run(), which is submitted once `needed` is done."""
        ready: Future[list[RowMatcher]] = Future()
        needed.add_done_callback(lambda _: self._pool.submit(_complete, ready, run))
        return ready

    def _begin(self, compiled: "Future[Matcher]", output_ids: list[int]) -> RowMatcher:
        try:
            matcher = RowMatcher(compiled.result().deep_copy(), self.num_words)
        except GrammarError as error:
            return RowMatcher(None, self.num_words, str(error))
        matcher.begin(output_ids)
        return matcher


def _settled(states: Sequence[_Row]) -> list[RowMatcher]:
    """Returns the matchers of rows once nothing is being done with them. A future is asked once for all of
    its rows."""
    for state in states:
        for copy in state.copies:
            copy.exception()
        state.copies.clear()
    done = {ready: ready.result() for ready in {state.ready for state in states}}
    return [done[state.ready][state.index] for state in states]


def _advance(
    matchers: list[RowMatcher], members: Sequence[int], tokens: Callable[[], Sequence[int] | Integers]
) -> list[RowMatcher]:
    """Advances some rows, one after the other, and returns them. members: their indexes into the tokens."""
    known = tokens()
    for matcher, member in zip(matchers, members, strict=True):
        if known[member] >= 0:
            matcher.advance(int(known[member]))
    return matchers


def _complete(ready: "Future[list[RowMatcher]]", run: Callable[[], RowMatcher]) -> None:
    """Completes a future with what run() returns or raises."""
    try:
        ready.set_result([run()])
    except BaseException as error:
        ready.set_exception(error)
