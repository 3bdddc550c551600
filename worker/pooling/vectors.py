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

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        pass

    def row_states(self, entry: int, count: int) -> States:
        pass


def finish(vectors: Floats, options: engine_pb2.Pooling) -> Floats | None:
    """Returns the leading elements [M, D] of vectors [M, E], of unit length if so requested; None: a value is
    not finite.

    The length is a correctly rounded sum, so that it depends on no order of summation. A vector of zeros has
    no direction and stays as it is.
    """
    vectors = vectors[:, : options.dimensions] if options.dimensions else vectors
    if not np.isfinite(vectors).all():
        return None
    if not options.normalize:
        return vectors
    lengths = [math.sqrt(math.fsum(np.square(each, dtype=np.float64).tolist())) for each in vectors]
    divisors = np.array([length or 1.0 for length in lengths], np.float32)
    return vectors / divisors[:, None]
