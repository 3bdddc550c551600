"""Candidates from which a search makes a recorded choice."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.beam_search import Beam, BeamParameters, BeamSearch
from pagewire_replay.beams import candidates_of

WIDTH, NUM_CANDIDATES = 4, 6


def search_of(num_beams: int = 1, width: int = WIDTH) -> BeamSearch:
    search = BeamSearch(
        BeamParameters(
            width=width,
            num_results=2,
            length_penalty=0.0,
            early_stopping=False,
            stops=frozenset(range(1, 1 + NUM_CANDIDATES)),
            min_tokens=0,
            max_output=100,
            vocab_size=NUM_CANDIDATES,
        )
    )
    if num_beams > 1:
        search.beams = [Beam(array("I", (50 + i,)), -float(i)) for i in range(num_beams)]
    return search


def advance(search: BeamSearch, parents: Sequence[int]) -> list[int]:
    candidates = candidates_of(search, parents, lambda position, beam: 100 + beam)
    assert all(len(each) == NUM_CANDIDATES for each in candidates)
    return search.advance(candidates)


def test_the_first_choice_continues_the_prompt() -> None:
    search = search_of()
    assert advance(search, [0] * WIDTH) == [0] * WIDTH
    assert [beam.output.tolist() for beam in search.beams] == [[100], [101], [102], [103]]


@given(st.lists(st.integers(0, WIDTH - 1), min_size=WIDTH, max_size=WIDTH))
def test_any_parents_are_chosen_in_their_order(parents: list[int]) -> None:
    search = search_of(WIDTH)
    assert advance(search, parents) == parents == search.parents
    assert [beam.output[0] for beam in search.beams] == [50 + parent for parent in parents]
    assert advance(search, parents[::-1]) == parents[::-1], "and again, from these scores"


@pytest.mark.parametrize("num_beams", [1, WIDTH])
def test_a_search_that_was_over_is_over(num_beams: int) -> None:
    search = search_of(num_beams)
    assert advance(search, ()) == [] and search.done
    assert len(search.results()) == 2


def test_more_beams_than_tokens_repeat_the_first_ones() -> None:
    search = search_of(width=NUM_CANDIDATES + 2)
    assert advance(search, [0] * (NUM_CANDIDATES + 2)) == [0] * (NUM_CANDIDATES + 2)


def test_tokens_are_asked_for_by_position_and_beam() -> None:
    asked: list[tuple[int, int]] = []

    def token_of(position: int, beam: int) -> int:
        asked.append((position, beam))
        return 100

    candidates_of(search_of(WIDTH), range(WIDTH), token_of)
    assert asked == [(1, beam) for beam in range(WIDTH)]
