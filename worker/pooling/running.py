"""Pooling of the hidden states of a row, which arrive in chunks.

Each state is added by itself, from the first to the last: float32 results have the same bits however the row
is cut into steps.
"""

from abc import ABC, abstractmethod

import numpy as np

from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_CLS,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    POOLING_TYPE_WEIGHTED_MEAN,
    PoolingType,
)
from worker.pooling.vectors import Floats


class Running(ABC):
    """Pools the states so far. count: of them."""

    def __init__(self) -> None:
        self.count = 0
        self._pooled: Floats | None = None

    def add(self, states: Floats) -> None:
        """Adds the next states of the row [N, E]."""
        for state in states:
            self._pooled = self._begin(state) if self._pooled is None else self._next(self._pooled, state)
            self.count += 1

    def value(self) -> Floats:
        """Returns the pooled state [E] of all so far, of which there is at least one."""
        assert self._pooled is not None
        return self._pooled

    def _begin(self, state: Floats) -> Floats:
        return state.copy()

    @abstractmethod
    def _next(self, pooled: Floats, state: Floats) -> Floats:
        """Returns `pooled` with one more state; may change it."""


class RunningFirst(Running):
    """The state of the first token."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        return pooled


class RunningMax(Running):
    """The largest value of each element. A NaN stays."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        return np.maximum(pooled, state, out=pooled)


class RunningMean(Running):
    """The mean of all."""

    def _begin(self, state: Floats) -> Floats:
        return state + np.float32(0)  # -0 becomes 0

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        pooled += state
        return pooled

    def value(self) -> Floats:
        return super().value() / np.float32(self.count)


class RunningWeightedMean(Running):
    """The mean of all, those of position p with the weight p + 1."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        pooled += state * np.float32(self.count + 1)
        return pooled

    def value(self) -> Floats:
        return super().value() / np.float32(self.count * (self.count + 1) // 2)


RUNNING: dict[PoolingType, type[Running]] = {
    POOLING_TYPE_MEAN: RunningMean,
    POOLING_TYPE_CLS: RunningFirst,
    POOLING_TYPE_MAX: RunningMax,
    POOLING_TYPE_WEIGHTED_MEAN: RunningWeightedMean,
}
"""Types that read more than the last state."""
