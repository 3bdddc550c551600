"""Repetition, frequency and presence penalties."""

import numpy as np
import torch

from kernels.cpu.sampling.api import Histories, SamplingKernels
from kernels.ops.sampling.logits_processors import penalties
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Table, TableRows

OFF = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}


def strengths_of(sequence: NewSequence) -> list[float] | None:
    """Returns repetition, frequency and presence penalty; None: nothing is penalized."""
    strengths = [sequence.scalar(name, off) for name, off in OFF.items()]
    return None if strengths == list(OFF.values()) else strengths


class Penalties(TableRows):
    """Penalizes tokens that a row has in its prompt or output, on a CPU.

    The state of a row is its history, a list of token ids with repeats (prompt and output; the output alone
    without a repetition penalty, since the prompt then does not count), and the counts [V] over the output.
    Only logits of tokens in the history change. A history is padded with its first token; an empty one (no
    repetition penalty, no output yet) with token 0, which changes nothing: without a repetition penalty, the
    penalty of a token depends on its count alone.
    """

    def __init__(self, vocab_size: int, device: torch.device, kernels: SamplingKernels | None) -> None:
        self._kernels = kernels
        self._strengths = Table((3,), 0.0, torch.float32, device)  # repetition, frequency, presence
        self._history = Table((1,), 0, torch.int64, device)
        self._counts = Table((vocab_size,), 0, torch.int32, device)
        super().__init__(device, self._strengths, self._history, self._counts)
        self._lengths: dict[int, int] = {}  # row -> length of its history

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row with the prompt and output of its sequence."""
        strengths = strengths_of(sequence)
        if strengths is None:
            return
        output = sequence.output_ids
        history = output if strengths[0] == 1 else sequence.prompt_ids + output
        counts = np.bincount(np.array(output, np.int64), minlength=self._counts.data.shape[1])
        slot = self.slots.take(row)
        self._strengths.set(slot, self.upload(strengths, np.float32))
        self._history.set(slot, self.upload(history, np.int64))
        self._counts.set(slot, torch.from_numpy(counts.astype(np.int32)))
        self._lengths[row] = len(history)

    def fork_row(self, row: int, source_row: int) -> None:
        super().fork_row(row, source_row)
        if source_row in self.slots:
            self._lengths[row] = self._lengths[source_row]

    def apply(self, batch: SampleBatch) -> None:
        """Penalizes the logits of the rows that have penalties."""
        users = batch.users(self.slots)
        if not users:
            return
        rows = [batch.rows[user] for user in users]
        if self._kernels is not None:
            self._kernels.penalize(batch.logits, self._histories(users, rows))
            return
        slots = self.slots.index(rows)
        longest = max(self._lengths[row] for row in rows)
        history = self._history.gather(slots)[:, : max(1, longest)]
        counts = self._counts.data[slots[:, None], history]
        penalties(batch.logits, torch.tensor(users), history, counts, self._strengths.gather(slots))

    def record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends the new tokens [A] int64 of rows [A] to their histories."""
        users = [index for index, row in enumerate(rows) if row in self.slots]
        if not users:
            return
        rows = [rows[user] for user in users]
        lengths = [self._lengths[row] for row in rows]
        self._history.widen(max(lengths) + 1)
        if self._kernels is not None:
            self._kernels.append(tokens, self._histories(users, rows))
        else:
            tokens, slots = tokens[users], self.slots.index(rows)
            self._history.data[slots, lengths] = tokens
            self._counts.data[slots, tokens] += 1
        self._lengths.update((row, length + 1) for row, length in zip(rows, lengths, strict=True))

    def _histories(self, users: list[int], rows: list[int]) -> Histories:
        """Returns the tables for rows [U]. users: [U] their indexes in the step."""
        slots, lengths = [self.slots[row] for row in rows], [self._lengths[row] for row in rows]
        return Histories(users, slots, lengths, self._history.data, self._counts.data, self._strengths.data)
