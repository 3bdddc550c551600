"""A sequence that begins a row of the sampler, and what its request asks to do with logits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagewire.internal.v1 import worker_pb2

NO_PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that begins a row."""

    new: worker_pb2.NewRow
    prompt_ids: list[int]
    output_ids: list[int]

    def scalar(self, name: str, neutral: float) -> float:
        """Returns a scalar of SamplingParams; the neutral value where it is absent."""
        sampling = self.new.sampling
        return float(getattr(sampling, name)) if sampling.HasField(name) else neutral

    def penalties(self) -> list[float] | None:
        """Returns repetition, frequency and presence penalty; None: nothing is penalized."""
        strengths = [self.scalar(name, off) for name, off in NO_PENALTIES.items()]
        return None if strengths == list(NO_PENALTIES.values()) else strengths

    def bias(self, vocab_size: int) -> dict[int, float]:
        """Returns the bias of tokens. Ids outside the vocabulary are left out."""
        given = self.new.sampling.logit_bias.items()
        return {token: bias for token, bias in given if token < vocab_size}

    def allowed(self, vocab_size: int) -> npt.NDArray[np.int32] | None:
        """Returns the words of a kernels.api.Bitmask of the allowed tokens; None: all tokens.

        Raises ValueError when the vocabulary has none of the tokens.
        """
        allowed = self.new.sampling.allowed_token_ids
        if not allowed:
            return None
        token_ids = [token for token in allowed if token < vocab_size]
        if not token_ids:
            raise ValueError(f"sampling.allowed_token_ids: none is below the vocabulary's {vocab_size}")
        mask = np.zeros(-vocab_size % 32 + vocab_size, np.uint8)
        mask[token_ids] = 1
        return np.packbits(mask, bitorder="little").view(np.int32)


class RowStates(ABC):
    """State by row of something that changes logits before the choice."""

    @abstractmethod
    def __contains__(self, row: int) -> bool:
        """Returns whether the row's logits may be changed."""

    @abstractmethod
    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Raises ValueError when the vocabulary has none of the allowed tokens."""

    @abstractmethod
    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row as a copy of another."""

    @abstractmethod
    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
