"""Beam searches in recordings: what was chosen is written down, and chosen again.

A choice is which beams go on. What the worker offered, and what the offers were worth, a replay need not
know. Tokens of beams stand for hashes of blocks, as elsewhere (stories.py): where a block is full, the last
token of each beam is a number of its hash.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from engine_core.beam_search.search import Beam, BeamParameters, BeamSearch, Hypothesis, Offers
from engine_core.beam_search.sequences import BeamRows
from engine_core.request import Request
from pagewire.internal.v1.recording_pb2 import RecordedChoice
from pagewire.ipc.columns import unpack_u32

TokenOf = Callable[[int, int, bytes | None], int]
"""The token of a beam: its position in the output, which beam it is, the hash of the block that it fills."""


class ObservedSearch(BeamSearch):
    """A search that remembers its last choice."""

    def __init__(self, parameters: BeamParameters) -> None:
        super().__init__(parameters)
        self.parents: list[int] | None = None

    def advance(self, offers: Sequence[Offers]) -> list[int]:
        self.parents = super().advance(offers)
        return self.parents


def observe(beams: BeamRows) -> None:
    """The search that is about to begin remembers its choices."""
    beams.make_search = ObservedSearch
    beams.search = ObservedSearch(beams.parameters)


class ReplayedSearch(BeamSearch):
    """A search that chooses what was chosen at the same length; it is over where the recording ends."""

    def __init__(
        self,
        parameters: BeamParameters,
        choices: dict[int, RecordedChoice],
        token_of: TokenOf,
        hash_bytes: int,
    ) -> None:
        super().__init__(parameters)
        self._choices = choices  # by length
        self._token_of = token_of
        self._hash_bytes = hash_bytes

    def advance(self, offers: Sequence[Offers]) -> list[int]:
        choice = self._choices.get(self.length, RecordedChoice(is_over=True))
        self.done = choice.is_over
        if self.done:
            return []
        parents, position, size = unpack_u32(choice.parents), self.length, self._hash_bytes
        hashes = [choice.block_hashes[i : i + size] for i in range(0, len(choice.block_hashes), size)]
        tokens = [
            self._token_of(position, beam, hashes[beam] if hashes else None) for beam in range(len(parents))
        ]
        self.beams = [
            Beam(self.beams[parent].output + array("I", (token,)), 0.0)
            for parent, token in zip(parents, tokens, strict=True)
        ]
        return parents

    def results(self) -> list[Hypothesis]:
        """The beams: those that were better are not known, but how many there are, and about how long."""
        beams = islice(cycle(self.beams), self.parameters.num_results)
        return [Hypothesis(beam.output, 0.0) for beam in beams]


def replay_beams(
    request: Request,
    *,
    num_results: int,
    num_offers: int,
    make_search: Callable[[BeamParameters], BeamSearch],
) -> None:
    """Makes a request a beam search."""
    parameters = BeamParameters(
        width=len(request.sequences),
        num_results=num_results,
        length_penalty=0.0,
        early_stopping=False,
        stops=frozenset(range(num_offers)),  # so many that num_offers is what it was
        min_tokens=0,
        max_output=request.max_tokens,
        vocab_size=num_offers,
    )
    beams = BeamRows(parameters, request.sequences)
    beams.make_search, beams.search = make_search, make_search(parameters)
    request.start_beams(beams)
