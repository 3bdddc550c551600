"""What the samplers of all devices keep of rows: parameters in columns, and processors."""

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.ops.sampling.columns import NEUTRAL, SamplingColumns
from pagewire.internal.v1 import worker_pb2
from worker.grammar.rows import GrammarRows
from worker.sampling.batch import NewSequence


class Processor(Protocol):
    """State by row of something that changes logits before the choice, such as penalties."""

    def __contains__(self, row: object) -> bool:
        """Returns whether the processor may change the row's logits."""

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row."""

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row as a copy of another."""

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""


class SamplingRows:
    """Rows that sample. A row that is not in use has undefined entries in the columns. Base class of
    samplers."""

    def __init__(
        self,
        columns: SamplingColumns,
        vocab_size: int,
        processors: Sequence[Processor] = (),
        grammars: GrammarRows | None = None,
    ) -> None:
        """processors: in the order in which they change logits; they do not commute. grammars: of the same
        rows; None: a row that comes with one fails."""
        self.columns, self._vocab_size, self._processors = columns, vocab_size, processors
        self.grammars = grammars or GrammarRows(vocab_size, None)

    @torch.inference_mode()
    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row. output_ids: tokens that the sequence already has; the next one's position is their
        number. Raises ValueError when allowed_token_ids has no token of the vocabulary.
        """
        self.remove_row(row)
        sequence = NewSequence(new, prompt_ids, output_ids)
        values = {name: sequence.scalar(name, neutral) for name, neutral in NEUTRAL.items()}
        if values["top_k"] >= self._vocab_size:
            values["top_k"] = 0
        index, position = new.sequence_index, len(output_ids)
        self.columns.set_row(row, **values, seed=new.sampling.seed, sequence_index=index, position=position)
        self.grammars.add_row(row, new, prompt_ids, output_ids)
        for processor in self._processors:
            processor.add_row(row, sequence)
        self._begin(row)

    @torch.inference_mode()
    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.remove_row(row)
        self.columns.words[:, row] = self.columns.words[:, source_row]
        self.columns["sequence_index"][row] = sequence_index
        self.grammars.fork_row(row, source_row, sequence_index)
        for processor in self._processors:
            processor.fork_row(row, source_row)
        self._begin(row)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self.grammars.remove_row(row)
        for processor in self._processors:
            processor.remove_row(row)

    def _begin(self, row: int) -> None:
        """Is called when a row has begun."""
