"""The products of a head. numpy alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from worker.pooling.vectors import Floats

ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "Identity": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32),
    "Tanh": lambda x: np.tanh(x.astype(np.float64)).astype(np.float32),
    "GELU": lambda x: np.array(
        [each * (1 + math.erf(each / math.sqrt(2))) / 2 for each in x.ravel().tolist()], np.float32
    ).reshape(x.shape),
}
"""By their names in pagewire.checkpoints.heads. In float64: the last bits of exp and tanh in float32
depend on the instruction set."""


LOGITS_AT_ONCE = 32
"""Positions of an input whose logits are held at once: 32 MB for 250,000 tokens."""
BLOCK = 1 << 16
"""Elements of a weight that are multiplied at once: these and their products stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class StageNorm:
    """A layer norm in float32. weight: [N]. bias: [N]; None: none."""

    weight: Floats
    bias: Floats | None
    eps: float

    def __call__(self, x: Floats) -> Floats:
        """[M, N] -> [M, N]"""
        sums: Floats = np.add.reduce(x, axis=1)
        centered = x - (sums / np.float32(x.shape[1]))[:, None]
        squares: Floats = np.add.reduce(centered * centered, axis=1)
        variance = (squares / np.float32(x.shape[1]))[:, None]
        y: Floats = centered / np.sqrt(variance + np.float32(self.eps)) * self.weight
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True)
class Stage:
    """norm(activation(weight @ x + bias)) in float32. weight: [N, K]. bias, norm: None: none.

    Products of one vector, which numpy sums in an order that depends on K alone: the same bits on any
    device, in any batch, and with any number of threads, which those of BLAS do not promise. A block of the
    weight is read once for all vectors.
    """

    weight: Floats
    bias: Floats | None = None
    activation: str = "Identity"
    norm: StageNorm | None = None

    def __call__(self, x: Floats) -> Floats:
        """[M, K] -> [M, N]"""
        y = np.empty((len(x), len(self.weight)), np.float32)
        rows = max(BLOCK // x.shape[1], 1)
        products = np.empty((rows, x.shape[1]), np.float32)
        for start in range(0, len(self.weight), rows):
            block = self.weight[start : start + rows]
            for vector, sums in zip(x, y, strict=True):
                np.multiply(block, vector, out=products[: len(block)])
                np.add.reduce(products[: len(block)], axis=1, out=sums[start : start + rows])
        with np.errstate(over="ignore"):  # Sigmoid of a large negative value is 0
            y = ACTIVATIONS[self.activation](y if self.bias is None else y + self.bias)
        return y if self.norm is None else self.norm(y)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Stages, one behind the other."""

    stages: tuple[Stage, ...]

    @property
    def size(self) -> int:
        """Elements of what it returns."""
        return len(self.stages[-1].weight)

    def __call__(self, x: Floats) -> Floats:
        """[M, E] -> [M, size]"""
        for stage in self.stages:
            x = stage(x)
        return x


@dataclass(frozen=True, slots=True, eq=False)
class SparseHead:
    """Weights of the vocabulary (SPLADE, https://arxiv.org/abs/2109.10086): log(1 + max(0, x)), where x is a
    token's largest logit over all positions. That grows with x: the largest logits are pooled.

    logits: [N, E] -> [N, V], without the bias; each row has the bits that it has alone. bias: [V].
    """

    transform: Stage
    logits: Callable[[Floats], Floats]
    bias: Floats

    @property
    def size(self) -> int:
        """Elements of what it returns."""
        return len(self.bias)

    def largest(self, states: Floats) -> Floats:
        """Returns the largest logits [1, V] of states [N, E]; NaN where one is."""
        parts = (states[start : start + LOGITS_AT_ONCE] for start in range(0, len(states), LOGITS_AT_ONCE))
        largest = [(self.logits(self.transform(part)) + self.bias).max(axis=0) for part in parts]
        pooled: Floats = np.maximum.reduce(largest)
        return pooled[None]

    def __call__(self, x: Floats) -> Floats:
        """[M, V] -> [M, V], the weights of the largest logits."""
        weights: Floats = np.log1p(np.maximum(x, 0).astype(np.float64)).astype(np.float32)
        return weights


AnyHead = Head | SparseHead
