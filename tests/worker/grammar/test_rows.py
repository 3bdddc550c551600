"""Grammars beside rows: masks are a function of the output, whatever happened to the row."""

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from frontend.grammar.notation import json_grammar
from pagewire.internal.v1 import worker_pb2
from tests.patience import PATIENCE_S
from tests.worker.grammar.conftest import EOS
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.matcher import TOO_MUCH, UNFIT
from worker.grammar.rows import NO_ENGINE, GrammarRows

V = EOS + 1
SCHEMA = json_grammar('{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array"}}}')
GRAMMARS = ("start: /[ab]*c/", SCHEMA, 'start: "x" | "yy"')


def begin(rows: GrammarRows, row: int, grammar: str, output: Sequence[int] = ()) -> None:
    rows.add_row(row, worker_pb2.NewRow(row=row, grammar=grammar), [1, 2], list(output))


def allowed(rows: GrammarRows, row: int) -> set[int]:
    (words,) = rows.words([row])
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def advance(rows: GrammarRows, row: int, token: int) -> None:
    rows.record([row], lambda: [token])


@pytest.fixture
def rows(compiler: GrammarCompiler) -> GrammarRows:
    return GrammarRows(V, compiler)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_masks_depend_on_the_output_alone(rows: GrammarRows, grammar: str) -> None:
    """A row that went token by token, one that is resumed with the output, and a fork of either agree at each
    position; the text is complete where EOS is allowed."""
    rng = random.Random(5)
    begin(rows, 0, grammar)
    output: list[int] = []
    while EOS not in output and len(output) < 60:
        begin(rows, 1, grammar, output)
        rows.fork_row(2, 0, 1)
        rows.fork_row(3, 1, 2)
        masks = rows.words([0, 1, 2, 3])
        assert (masks == masks[0]).all()
        output.append(rng.choice(sorted(allowed(rows, 0))))
        advance(rows, 0, output[-1])
    assert allowed(rows, 0)
    assert rows.errors([0, 1, 2, 3]) == {}


def test_what_a_grammar_forces(rows: GrammarRows) -> None:
    """The text up to the next choice. Asking for it changes no mask."""
    begin(rows, 0, 'start: "name: " /[ab]/ "."')
    before = allowed(rows, 0)
    assert bytes(rows.forced(0)) == b"name: " and bytes(rows.forced(0)) == b"name: "
    assert allowed(rows, 0) == before == {ord("n")}
    for token in b"name: ":
        advance(rows, 0, token)
    assert rows.forced(0) == [] and allowed(rows, 0) == {ord("a"), ord("b")}
    advance(rows, 0, ord("b"))
    assert rows.forced(0)[:1] == [ord(".")]
    advance(rows, 0, ord("."))
    assert allowed(rows, 0) == {EOS}
    begin(rows, 1, 'start: "', [])  # a grammar that does not compile
    assert rows.forced(1) == [] and rows.forced(2) == []


def test_eos_is_allowed_where_the_grammar_is_complete_and_alone_at_its_end(rows: GrammarRows) -> None:
    begin(rows, 0, "start: /ab?/")
    assert allowed(rows, 0) == {ord("a")}
    advance(rows, 0, ord("a"))
    assert allowed(rows, 0) == {ord("b"), EOS}
    advance(rows, 0, ord("b"))
    assert allowed(rows, 0) == {EOS}
    for _ in range(3):  # a step that was planned before EOS was known
        advance(rows, 0, EOS)
        assert allowed(rows, 0) == {EOS}
    assert rows.errors([0]) == {}


def test_a_fork_goes_its_own_way(rows: GrammarRows) -> None:
    begin(rows, 0, 'start: "ax" | "by"')
    rows.fork_row(1, 0, 1)
    advance(rows, 0, ord("a"))
    advance(rows, 1, ord("b"))
    assert allowed(rows, 0) == {ord("x")} and allowed(rows, 1) == {ord("y")}


def test_forks_of_a_grammar_that_is_being_compiled(rows: GrammarRows) -> None:
    """More of them than threads."""
    begin(rows, 0, "start: /(a|bc){3,20}/")
    for row in range(1, 12):
        rows.fork_row(row, 0, row)
    masks = rows.words(list(range(12)))
    assert (masks == masks[0]).all() and masks.any()


@pytest.mark.parametrize(
    ("grammar", "output", "error"),
    [
        ("start: foo", [], "unknown name"),
        ("start: <|nosuch|>", [], "special token"),
        ("start: /a/", [ord("b")], UNFIT),
        ("start: /a/", [ord("a"), ord("a")], UNFIT),
        ('start: start "a"', [], "no output"),
    ],
)
def test_a_row_that_cannot_go_on_has_no_token_and_says_why(
    rows: GrammarRows, grammar: str, output: list[int], error: str
) -> None:
    """Not EOS either, which the library allows in its error state: the output would look complete."""
    begin(rows, 7, grammar, output)
    begin(rows, 8, "start: /a/")
    assert allowed(rows, 7) == set() and allowed(rows, 8) == {ord("a")}
    errors = rows.errors([8, 7])
    assert list(errors) == [1] and error in errors[1]
    advance(rows, 7, -1)
    rows.fork_row(9, 7, 1)
    assert allowed(rows, 7) == allowed(rows, 9) == set()
    rows.remove_row(7)
    assert rows.errors([7]) == {}


def test_rules_that_multiply_end_a_row_with_a_sentence(rows: GrammarRows) -> None:
    """The library calls all of its limits an internal error."""
    rules = [f"R{level}: R{level + 1} R{level + 1} | /[a-z]/?" for level in range(40)]
    begin(rows, 0, "\n".join(["start: R0", *rules, 'R40: "a"']))
    for _ in range(8):
        advance(rows, 0, ord("a"))
    assert allowed(rows, 0) == set() and rows.errors([0]) == {0: TOO_MUCH}


def test_without_a_compiler_a_row_with_a_grammar_fails() -> None:
    rows = GrammarRows(V, None)
    begin(rows, 0, "start: /a/")
    begin(rows, 1, "")
    assert 0 in rows and 1 not in rows and rows.engine == ""
    assert not rows.words([0]).any() and rows.errors([0]) == {0: NO_ENGINE}


def test_a_panic_ends_one_row(rows: GrammarRows) -> None:
    class PanicException(BaseException):
        pass

    class Panics:
        def is_stopped(self) -> bool:
            raise PanicException("index out of bounds")

    begin(rows, 0, "start: /ab/")
    begin(rows, 1, "start: /ab/")
    rows.words([0, 1])
    rows.matchers([0])[0]._matcher = Panics()  # type: ignore[assignment]
    rows.record([0, 1], lambda: [ord("a"), ord("a")])
    assert allowed(rows, 0) == set() and allowed(rows, 1) == {ord("b")}
    assert "library that matches grammars fails" in rows.errors([0])[0]


def test_tokens_that_come_later_are_waited_for_in_a_thread(rows: GrammarRows) -> None:
    """As on a device that computes by itself: record() returns at once."""
    come = threading.Event()
    begin(rows, 0, "start: /ab/")
    rows.words([0])

    def tokens() -> list[int]:
        assert come.wait(PATIENCE_S)
        return [ord("a")]

    rows.record([0], tokens)
    come.set()
    assert allowed(rows, 0) == {ord("b")}


def test_grammars_are_compiled_once_per_content(compiler: GrammarCompiler) -> None:
    assert compiler.compile("start: /once/") is compiler.compile("start: /once/")
    assert compiler.compile("start: /once/") is not compiler.compile("start: /twice/")
