"""Pooling of the hidden states of a row, which arrive in chunks.

Each state is added by itself, from the first to the last: float32 results have the same bits however the row
is cut into steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    POOLING_TYPE_WEIGHTED_MEAN,
    PoolingType,
)
from worker.pooling.vectors import Floats


class Running(Protocol):
    """Pools the states so far."""

    def add(self, states: Floats) -> None:
        """Adds the next states of the row [N, E]."""

    def value(self) -> Floats:
        """Returns the pooled states [M, E] of all so far, of which there is at least one."""


class RunningAll:
    """Every state."""

    def __init__(self) -> None:
        self._parts: list[Floats] = []

    def add(self, states: Floats) -> None:
        self._parts.append(states)

    def value(self) -> Floats:
        """Returns all states [M, E] so far."""
        return np.concatenate(self._parts)


class RunningOne(ABC):
    """Pools to one state. count: of the states so far."""

    def __init__(self) -> None:
        self.count = 0
        self._pooled: Floats | None = None

    def add(self, states: Floats) -> None:
        """Adds the next states of the row [N, E]."""
        for state in states:
            self._pooled = self._begin(state) if self._pooled is None else self._next(self._pooled, state)
            self.count += 1

    def value(self) -> Floats:
        """Returns the pooled state [1, E] of all so far, of which there is at least one."""
        assert self._pooled is not None
        return self._end(self._pooled)[None]

    def _end(self, pooled: Floats) -> Floats:
        return pooled

    def _begin(self, state: Floats) -> Floats:
        return state.copy()

    @abstractmethod
    def _next(self, pooled: Floats, state: Floats) -> Floats:
        """Returns `pooled` with one more state; may change it."""


class RunningFirst(RunningOne):
    """The state of the first token."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        return pooled


class RunningMax(RunningOne):
    """The largest value of each element. A NaN stays."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        return np.maximum(pooled, state, out=pooled)


class RunningMean(RunningOne):
    """The mean of all."""

    def _begin(self, state: Floats) -> Floats:
        return state + np.float32(0)  # -0 becomes 0

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        pooled += state
        return pooled

    def _end(self, pooled: Floats) -> Floats:
        return pooled / np.float32(self.count)


class RunningWeightedMean(RunningOne):
    """The mean of all, those of position p with the weight p + 1."""

    def _next(self, pooled: Floats, state: Floats) -> Floats:
        pooled += state * np.float32(self.count + 1)
        return pooled

    def _end(self, pooled: Floats) -> Floats:
        return pooled / np.float32(self.count * (self.count + 1) // 2)


RUNNING: dict[PoolingType, Callable[[], Running]] = {
    POOLING_TYPE_ALL: RunningAll,
    POOLING_TYPE_MEAN: RunningMean,
    POOLING_TYPE_CLS: RunningFirst,
    POOLING_TYPE_MAX: RunningMax,
    POOLING_TYPE_WEIGHTED_MEAN: RunningWeightedMean,
}
"""Types that read more than the last state."""
