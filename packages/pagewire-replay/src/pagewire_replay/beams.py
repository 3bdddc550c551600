"""Candidates that make a beam search choose as it did when it was recorded.

Token ids and log-probabilities of candidates are not recorded. In a replay, the candidate that becomes beam k
gets the score -k, so that an ordinary BeamSearch takes the recorded candidates in the recorded order; where
the search ended, every candidate is a stop token.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from engine_core.beam_search import BeamParameters, BeamSearch

BeamToken = Callable[[int, int], int]
"""Returns a beam's token, given its position in the output and the beam."""
Candidates = list[tuple[int, float]]

_STOP = 1
"""A token that ends every replayed search, and stands for nothing else."""


def replayed_search(facts: Mapping[str, Any]) -> BeamParameters | None:
    """Returns a search with the recorded numbers of beams and candidates; None for requests that sample."""
    if not facts["num_beam_results"]:
        return None
    num_candidates = facts["num_beam_candidates"]
    return BeamParameters(
        width=facts["n"],
        num_results=facts["num_beam_results"],
        length_penalty=0.0,
        early_stopping=False,
        stops=frozenset(range(_STOP, _STOP + num_candidates)),  # num_candidates is as it was
        min_tokens=0,
        max_output=facts["max_tokens"],
        vocab_size=num_candidates,
    )


def candidates_of(search: BeamSearch, parents: Sequence[int], token_of: BeamToken) -> list[Candidates]:
    """Returns candidates of each beam [B][num_candidates] from which the search makes the recorded choice.

    parents: of the beams that go on; empty: the search ends.
    """
    beams, size = search.beams, search.parameters.num_candidates
    candidates: list[Candidates] = [[] for _ in beams]
    if not parents:
        for k in range(search.parameters.width):
            candidates[0].append((_STOP, -k - beams[0].score))
    for k, parent in enumerate(parents):
        if len(candidates[parent]) == size:
            break  # more beams than tokens: the search repeats its first candidates
        candidates[parent].append((token_of(search.length, k), -k - beams[parent].score))
    return [(each + [(0, -inf)] * size)[:size] for each in candidates]
