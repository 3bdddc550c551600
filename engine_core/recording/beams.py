"""Beam searches in recordings: which beams go on, and candidates that make a search choose the same.

Token ids and log-probabilities of candidates are not recorded. In a replay, the candidate that becomes beam k
gets the score -k, so that an ordinary BeamSearch takes the recorded candidates in the recorded order; where
the search ended, every candidate is a stop token.
"""

from collections.abc import Callable
from math import inf

from engine_core.beam_search.search import BeamParameters, BeamSearch
from pagewire.internal.v1.recording_pb2 import RecordedArrival, RecordedChoice
from pagewire.ipc.columns import unpack_u32

HASH_BYTES = 8
"""Length of a block hash in the file. Among ten million blocks, two different blocks look equal once in 10^5
recordings."""

BeamToken = Callable[[int, int, bytes | None], int]
"""Returns a beam's token, given its position in the output, the beam, and the hash of the block it fills."""
Candidates = list[tuple[int, float]]

_STOP = 1
"""A token that ends every replayed search, and stands for nothing else."""


def replayed_search(arrival: RecordedArrival) -> BeamParameters | None:
    """Returns a search with the recorded numbers of beams and candidates; None for requests that sample."""
    if not arrival.num_beam_results:
        return None
    return BeamParameters(
        width=arrival.n,
        num_results=arrival.num_beam_results,
        length_penalty=0.0,
        early_stopping=False,
        stops=frozenset(range(_STOP, _STOP + arrival.num_beam_candidates)),  # num_candidates is as it was
        min_tokens=0,
        max_output=arrival.max_tokens,
        vocab_size=arrival.num_beam_candidates,
    )


def candidates_of(search: BeamSearch, choice: RecordedChoice | None, token_of: BeamToken) -> list[Candidates]:
    """Returns candidates of each beam [B][num_candidates] from which the search makes the recorded choice.

    choice: None ends the search.
    """
    beams, size = search.beams, search.parameters.num_candidates
    candidates: list[Candidates] = [[] for _ in beams]
    if choice is None or choice.is_over:
        for k in range(search.parameters.width):
            candidates[0].append((_STOP, -k - beams[0].score))
    else:
        hashes = choice.block_hashes
        for k, parent in enumerate(unpack_u32(choice.parents)):
            if len(candidates[parent]) == size:
                break  # more beams than tokens: the search repeats its first candidates
            block_hash = hashes[k * HASH_BYTES : (k + 1) * HASH_BYTES] or None
            token = token_of(search.length, k, block_hash)
            candidates[parent].append((token, -k - beams[parent].score))
    return [(each + [(0, -inf)] * size)[:size] for each in candidates]
