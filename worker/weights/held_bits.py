"""What decides in which bits a model's matrices are held, while its checkpoint is loaded."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch

from worker.layers.base import Weight
from worker.weights.source import TensorSource


class HeldBits(ABC):
    """Matrices that are not made of plain floats of the model's dtype.

    takes()    before the model is made: can any be held so
    hold()     other memory takes the place of their parameters
    fill()     fills it from one tensor, a few rows at a time
    """

    rounds = False
    """Whether matrices of plain floats are rounded, those of a model without a checkpoint too."""
    allocates = False
    """Whether hold() allocates all matrices, and none exist before (Placement.later)."""

    @abstractmethod
    def takes(self, checkpoint: TensorSource, dtype: torch.dtype) -> bool:
        """True if matrices of a checkpoint may be held. dtype: the one that is asked for."""

    @abstractmethod
    def choose_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype of activations where matrices are held. Raises StartupError."""

    @abstractmethod
    def hold(self, model: torch.nn.Module, table: list[Weight], names: Mapping[str, str]) -> list[Weight]:
        """Gives matrices other memory. names: of the table's tensors in the checkpoint; empty: there is none.
        Returns the table of what is to be filled. Raises StartupError."""

    @abstractmethod
    def fill(self, checkpoint: TensorSource, weight: Weight, name: str) -> Iterator[int]:
        """Fills what a tensor goes to. Yields the bytes of each piece, in the target's dtype."""

    def write(self, weight: Weight, tensor: torch.Tensor) -> None:
        """Fills what a weight goes to with the part of a tensor that goes there."""
        weight.target.copy_(tensor.t() if weight.transposed else tensor.view(weight.target.shape))

    @abstractmethod
    def log(self, checkpoint: TensorSource, table: list[Weight], dtype: torch.dtype) -> None:
        """Says in one line what becomes of packed weights: a warning where some are unpacked."""
