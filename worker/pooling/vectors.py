"""From hidden states to the vector that a client gets. numpy alone: the simulated worker uses this too."""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernels.ops.attention.ragged import Integers
from pagewire.internal.v1 import engine_pb2

Floats = npt.NDArray[np.float32]
States = Callable[[], Floats]
"""Returns hidden states [N, E] of a step. Called at most once, and only after the step is done."""


class HiddenStates(Protocol):
    """The part of worker.executor.backend.StepOutputs that pooling reads."""

    def sampled_states(self, index: Integers) -> States:
        pass

    def row_states(self, entry: int, count: int) -> States:
        pass


def finish(state: Floats, options: engine_pb2.Pooling) -> Floats | None:
    """Returns the leading elements [D] of a state [E], of unit length if so requested; None: a value is not
    finite.

    The length is a correctly rounded sum, so that it depends on no order of summation. A vector of zeros has
    no direction and stays as it is.
    """
    vector = state[: options.dimensions] if options.dimensions else state
    if not np.isfinite(vector).all():
        return None
    if options.normalize:
        length = math.sqrt(math.fsum(np.square(vector, dtype=np.float64).tolist()))
        if length:
            vector = (vector / length).astype(np.float32)
    return vector


class RunningMean:
    """The mean of the hidden states of a row, which arrive in chunks.

    Each state is added to the sum by itself, from the first to the last: the float32 sum of each element has
    the same bits however the row is cut into steps.
    """

    def __init__(self) -> None:
        self._sum: Floats | None = None
        self._count = 0

    def add(self, states: Floats) -> None:
        """Adds the next states of the row [N, E]."""
        if self._sum is None:
            self._sum = np.zeros(states.shape[1], np.float32)
        for state in states:
            self._sum += state
        self._count += len(states)

    def value(self) -> Floats:
        """Returns the mean [E] of all states so far, of which there is at least one."""
        assert self._sum is not None
        return self._sum / np.float32(self._count)
