"""Vectors of requests that pool: each ends the one sequence of its request, in place of a token."""

from typing import TypeVar

from engine_core.request import Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates
from engine_core.step.result import Result

T = TypeVar("T")


def take_vectors(
    sampling: list[Sequence], samples: list[T], result: Result, states: SequenceStates
) -> tuple[list[Sequence], list[T]]:
    """Ends the sequences [A] of a plan that have a vector; returns the others with their samples.

    A vector of a sequence that has ended since the plan was made is dropped.
    """
    if not result.vectors:
        return sampling, samples
    for entry, values in result.vectors.items():
        sequence = sampling[entry]
        if sequence.status is not Status.ENDED:
            states.outputs.add_vector(sequence, values)
            states.end(sequence)
    pairs = zip(sampling, samples, strict=True)
    others = [pair for pair in pairs if not pair[0].request.pools]
    return [pair[0] for pair in others], [pair[1] for pair in others]
