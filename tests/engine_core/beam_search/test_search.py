"""The search itself, without rows and blocks, against the dense twin; and rules one by one."""

import dataclasses
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.beam_search import BeamParameters, BeamSearch
from pagewire.ipc.columns import unpack_u32
from tests.engine_core.fake_beams import EOS, beam_search, expected_beams, fake_offers
from tests.engine_core.fakes import LIMITS, add_request

SMALL = BeamParameters(
    width=2,
    num_results=2,
    length_penalty=1.0,
    early_stopping=False,
    stops=frozenset({EOS}),
    min_tokens=0,
    max_output=9,
    vocab_size=100,
)


def outputs(search: BeamSearch) -> list[list[int]]:
    return [list(result.output) for result in search.results()]


@settings(max_examples=300, deadline=None)
@given(
    width=st.integers(1, 6),
    data=st.data(),
    length_penalty=st.sampled_from([1.0, 0.0, 0.7, 2.0, -1.0]),
    early_stopping=st.booleans(),
    max_tokens=st.integers(1, 12),
    stops=st.integers(0, 8),
    prompt=st.lists(st.integers(3, 90), min_size=1, max_size=4),
)
def test_equal_to_the_twin(
    width: int,
    data: st.DataObject,
    length_penalty: float,
    early_stopping: bool,
    max_tokens: int,
    stops: int,
    prompt: list[int],
):
    message = add_request(
        1,
        prompt,
        n=data.draw(st.integers(1, width)),
        beams=beam_search(width, length_penalty, early_stopping),
        max_tokens=max_tokens,
        min_tokens=data.draw(st.integers(0, min(3, max_tokens))),
        stop_token_ids=range(100, 100 + stops),
    )
    stop_ids = frozenset({EOS, *range(100, 100 + stops)})
    parameters = BeamParameters(
        width,
        message.sampling.n,
        length_penalty,
        early_stopping,
        stop_ids,
        message.stopping.min_tokens,
        max_tokens,
        LIMITS.vocab_size,
    )
    search = BeamSearch(parameters)
    while not search.done:
        forbidden = tuple(stop_ids) if search.length < parameters.min_tokens else ()
        search.advance(
            [
                fake_offers(prompt + list(beam.output), forbidden, parameters.num_candidates)
                for beam in search.beams
            ]
        )
    assert unpack_u32(message.prompt_token_ids) == prompt
    assert outputs(search) == [output for output, _ in expected_beams(message, LIMITS)]


def test_a_beam_goes_on_from_the_parent_that_it_names():
    search = BeamSearch(SMALL)
    assert search.advance([[(7, -1.0), (8, -2.0), (9, -3.0)]]) == [0, 0]
    assert search.advance([[(5, -9.0), (6, -9.5)], [(5, -1.0), (6, -1.5)]]) == [1, 1]
    assert [list(beam.output) for beam in search.beams] == [[8, 5], [8, 6]]
    assert [beam.score for beam in search.beams] == [-3.0, -3.5]


def test_of_equals_the_better_beam_comes_first_and_then_the_lower_token():
    search = BeamSearch(SMALL)
    search.advance([[(7, -1.0), (8, -1.0)]])
    search.advance([[(4, -2.0), (5, -2.0)], [(3, -2.0), (4, -2.0)]])
    assert [list(beam.output) for beam in search.beams] == [[7, 4], [7, 5]]


def test_an_end_counts_only_among_the_best():
    """The third-best candidate is no hypothesis with two beams, though both others go on."""
    search = BeamSearch(SMALL)
    search.advance([[(7, -1.0), (8, -2.0), (EOS, -2.5)]])
    assert outputs(search) == [[7], [8]]
    search.advance([[(EOS, -0.5), (5, -0.75), (6, -8.0)], [(EOS, -0.75), (5, -8.0), (6, -8.0)]])
    assert outputs(search)[0] == [7, EOS]
    assert [EOS] not in outputs(search)


def test_early_stopping_takes_the_first_that_are_complete():
    offers = [[(EOS, -1.0), (7, -1.5), (8, -2.0)]], [[(EOS, -1.0), (7, -0.1), (8, -4.0)]] * 2
    results = []
    for early_stopping in (True, False):
        search = BeamSearch(dataclasses.replace(SMALL, early_stopping=early_stopping))
        search.advance(offers[0])
        search.advance(offers[1])
        results.append(search.done)
    assert results == [True, False]


def test_what_is_masked_is_no_candidate_and_beams_are_repeated_far_below():
    """One token is possible: there are two beams all the same, and two results."""
    search = BeamSearch(dataclasses.replace(SMALL, max_output=2))
    assert search.advance([[(7, -1.0), (0, -inf), (1, -inf)]]) == [0, 0]
    assert [list(beam.output) for beam in search.beams] == [[7], [7]]
    assert search.beams[1].score < -1e8
    search.advance([[(7, -1.0), (8, -3.0)], [(7, -1.0), (8, -3.0)]])
    assert search.done
    assert outputs(search) == [[7, 7], [7, 8]], "the repeated one displaces nothing"


def test_results_before_the_end_are_the_best_so_far():
    search = BeamSearch(SMALL)
    assert outputs(search) == [[], []]
    search.advance([[(EOS, -1.0), (7, -3.0), (8, -3.5)]])
    assert outputs(search) == [[EOS], [7]]
