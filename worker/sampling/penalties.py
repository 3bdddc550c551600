"""Repetition, frequency and presence penalties."""

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.table_penalties import TablePenalties, Users
from kernels.ops.logits.penalties import penalties
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Slots, Table

OFF = (1.0, 0.0, 0.0)


class Penalties:
    """Penalizes tokens that a row has in its prompt or output.

    The state of a row is its history, a list of token ids with repeats (prompt and output; the output alone
    without a repetition penalty, since the prompt then does not count), and the counts [V] over the output.
    Only logits of tokens in the history change. A history is padded with its first token; an empty one (no
    repetition penalty, no output yet) with token 0, which changes nothing: without a repetition penalty, the
    penalty of a token depends on its count alone.
    """

    def __init__(self, vocab_size: int, device: torch.device, kernels: SamplingKernels | None = None) -> None:
        self._compiled = TablePenalties(kernels, vocab_size) if kernels is not None else None
        self._slots = Slots(device)
        self._strengths = Table((3,), 0.0, torch.float32, device)  # repetition, frequency, presence
        self._history = Table((1,), 0, torch.int64, device)
        self._counts = Table((vocab_size,), 0, torch.int32, device)
        self._lengths: dict[int, int] = {}  # row -> length of its history

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row with the prompt and output of its sequence."""
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        strengths = [sequence.scalar(name, off) for name, off in zip(names, OFF, strict=True)]
        if tuple(strengths) == OFF:
            return
        history = sequence.output_ids if strengths[0] == 1 else sequence.prompt_ids + sequence.output_ids
        device = self._counts.data.device
        output = torch.tensor(sequence.output_ids, dtype=torch.int64, device=device)
        counts = torch.zeros(self._counts.data.shape[1], dtype=torch.int32, device=device)
        counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
        slot = self._slots.take(row)
        self._strengths.set(slot, torch.tensor(strengths, device=device))
        self._history.set(slot, torch.tensor(history, dtype=torch.int64, device=device))
        self._counts.set(slot, counts)
        self._lengths[row] = len(history)

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the history of its source."""
        if source_row in self._slots:
            slot, source = self._slots.take(row), self._slots[source_row]
            for table in (self._strengths, self._history, self._counts):
                table.copy(slot, source)
            self._lengths[row] = self._lengths[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)
        self._lengths.pop(row, None)

    def apply(self, batch: SampleBatch) -> None:
        """Penalizes the logits of the rows that have penalties."""
        users = batch.users(self._slots)
        if not users:
            return
        rows = [batch.rows[user] for user in users]
        if self._compiled is not None:
            self._compiled.apply(batch.logits, self._users(users, rows))
            return
        slots = self._slots.index(rows)
        longest = max(self._lengths[row] for row in rows)
        history = self._history.gather(slots)[:, : max(1, longest)]
        counts = self._counts.data[slots[:, None], history]
        penalties(batch.logits, batch.index(users), history, counts, self._strengths.gather(slots))

    def record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends the new tokens [A] int64 of rows [A] to their histories."""
        users = [index for index, row in enumerate(rows) if row in self._slots]
        if not users:
            return
        rows = [rows[user] for user in users]
        lengths = [self._lengths[row] for row in rows]
        self._history.widen(max(lengths) + 1)
        if self._compiled is not None:
            self._compiled.note(tokens, self._users(users, rows))
        else:
            tokens = tokens[torch.tensor(users, device=tokens.device)]
            slots = self._slots.index(rows)
            self._history.data[slots, torch.tensor(lengths, device=tokens.device)] = tokens
            self._counts.data[slots, tokens] += 1
        self._lengths.update((row, length + 1) for row, length in zip(rows, lengths, strict=True))

    def _users(self, users: list[int], rows: list[int]) -> Users:
        """Returns the tables for rows [U]. users: [U] their indexes in the step."""
        slots, lengths = [self._slots[row] for row in rows], [self._lengths[row] for row in rows]
        return Users(users, slots, lengths, self._history.data, self._counts.data, self._strengths.data)
