"""What a token is drawn from, and the two features that make it from logits: top_k and temperature."""

from dataclasses import dataclass

import torch

from kernels.ops.logits.temperature import temperature_weights
from kernels.ops.sampling.top_k import top_k
from worker.sampling.batch import NewSequence
from worker.sampling.tables import RowScalars


@dataclass(slots=True)
class Candidates:
    """W candidates per row, in ascending order of their ids. Filters replace the weights."""

    rows: list[int]  # [A]
    row_index: torch.Tensor  # [A] int64: the same, on the device
    ids: torch.Tensor | None  # [A, W] int64; None: the whole vocabulary, W = V
    scores: torch.Tensor  # [A, W] float32: logits
    weights: torch.Tensor  # [A, W] float64: probabilities up to a factor; 0: filtered out


class TopK:
    """Per row: how many candidates it has. Its users go through the rest of the sampler by themselves."""

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._k = RowScalars(max_num_rows, 0, torch.int64, device)

    def __contains__(self, row: object) -> bool:
        return row in self._k.users

    @property
    def values(self) -> torch.Tensor:
        """[max_num_rows] int64: of all rows; 0: all tokens."""
        return self._k.values

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """k of V or more is all, as 0 is."""
        k = sequence.scalar("top_k", 0)
        self._k.set(row, k if k < self._vocab_size else 0)

    def fork_row(self, row: int, source_row: int) -> None:
        """As many."""
        self._k.copy(row, source_row)

    def remove_row(self, row: int) -> None:
        """All tokens."""
        self._k.remove(row)

    def apply(
        self, logits: torch.Tensor, rows: list[int], row_index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """logits [A, V] float32 of users -> ids [A, W] int64 and scores [A, W]; W: the largest k."""
        widest = max(int(self._k.users[row]) for row in rows)
        return top_k(logits, self._k.gather(row_index), widest)


class Temperature:
    """Per row: its temperature; 0 is greedy, and such a row has no candidates."""

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._temperature = RowScalars(max_num_rows, 0.0, torch.float64, device)

    def __contains__(self, row: object) -> bool:
        return row in self._temperature.users

    @property
    def values(self) -> torch.Tensor:
        """[max_num_rows] float64: of all rows."""
        return self._temperature.values

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Takes it."""
        self._temperature.set(row, sequence.scalar("temperature", 1.0))

    def fork_row(self, row: int, source_row: int) -> None:
        """The same."""
        self._temperature.copy(row, source_row)

    def remove_row(self, row: int) -> None:
        """No longer sampled."""
        self._temperature.remove(row)

    def apply(self, scores: torch.Tensor, largest: torch.Tensor, row_index: torch.Tensor) -> torch.Tensor:
        """scores [A, W] float32 of users, largest [A]: the rows' largest logit -> weights [A, W] float64."""
        return temperature_weights(scores, largest, self._temperature.gather(row_index))
