"""What a head is, whatever its form: a model that reads features of a target's steps."""

from abc import abstractmethod
from collections.abc import Sequence

import torch

from worker.models.base import LanguageModel


class Head(LanguageModel):
    """A LanguageModel that computes a position from the features there and the next token. `features` must
    be set before each step."""

    features: torch.Tensor  # [T, E]
    states: torch.Tensor  # [T, E], of the step that was computed last: the features of the next positions

    @abstractmethod
    def fuse(self, captured: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the features [T, E] of hidden states [T, E] behind each of the layers that are read."""
