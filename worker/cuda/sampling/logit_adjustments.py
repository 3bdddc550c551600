"""Penalties, bias and allowed tokens on the device: the state of kernels.triton.sampling.adjust_logits."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.triton.sampling.adjust_logits import Adjustments
from kernels.triton.sampling.ops import TritonSampling
from worker.sampling.sequence import NO_PENALTIES, NewSequence, RowStates
from worker.sampling.token_bans import Table
from worker.upload import upload

ALL = -1
"""A word of an allowed set that contains every token."""


class DeviceAdjustments(RowStates):
    """Dense state of every row, 4.25 bytes per token of the vocabulary: 650 KB for 152,000. It is allocated
    at start-up, so that no request can find the device full. Lists of biased tokens grow with the
    requests."""

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        num_words = -(-vocab_size // 32)

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros((max_num_rows, *shape), dtype=torch.int32, device=device)

        self._strengths = torch.zeros((max_num_rows, 3), dtype=torch.float32, device=device)
        self.counts = integers(vocab_size)
        """[rows, V]: how often each token is in the row's output."""
        self._prompt, self._allowed = integers(num_words), integers(num_words)
        self._num_biased = integers(1)
        self._bias_ids = Table((1,), 0, np.int32, device)
        self._bias = Table((1,), 0.0, np.float32, device)
        self._users: set[int] = set()

    def __contains__(self, row: int) -> bool:
        return row in self._users

    def add_row(self, row: int, sequence: NewSequence) -> None:
        strengths, bias = sequence.penalties(), sequence.bias(self._vocab_size)
        allowed = sequence.allowed(self._vocab_size)
        if strengths is None and not bias and allowed is None and not sequence.new.grammar:
            return
        self._users.add(row)
        self._strengths[row] = self._upload(strengths or list(NO_PENALTIES.values()), np.float32)
        self._num_biased[row] = self._upload([len(bias)], np.int32)
        self._bias_ids.set(row, list(bias))
        self._bias.set(row, list(bias.values()))
        self._allowed[row].fill_(ALL)
        if allowed is not None:
            self._allowed[row] = upload(allowed, self._device)
        if strengths is not None:
            self._count(row, sequence)

    def allow(self, rows: Sequence[int], words: npt.NDArray[np.int32]) -> None:
        """Sets the allowed tokens of rows [U] that have state. words: [U, W], see worker.grammar.matcher."""
        index = upload(np.array(rows, np.int64), self._device)
        self._allowed.index_copy_(0, index, upload(words, self._device))

    def remove_row(self, row: int) -> None:
        self._users.discard(row)

    def fork_row(self, row: int, source_row: int) -> None:
        if source_row not in self._users:
            return
        self._users.add(row)
        for tensor in (self._strengths, self.counts, self._prompt, self._num_biased, self._allowed):
            tensor[row] = tensor[source_row]
        for table in (self._bias_ids, self._bias):
            table.copy(row, source_row)

    def apply(self, logits: torch.Tensor, batch_index: torch.Tensor, slots: torch.Tensor) -> None:
        """Adjusts logits [A, V] float32 in place. batch_index: [A] 0, 1, ...; slots: [A], -1: none."""
        state = Adjustments(
            self._strengths,
            self.counts,
            self._prompt,
            self._bias_ids.data,
            self._bias.data,
            self._num_biased,
            self._allowed,
        )
        TritonSampling.adjust_logits(logits, batch_index, slots, state)

    def _count(self, row: int, sequence: NewSequence) -> None:
        """Counts prompt and output. Rows without penalties keep undefined counts, which have no effect."""
        self.counts[row].zero_()
        self._prompt[row].zero_()
        tokens = self._upload(sequence.prompt_ids + sequence.output_ids, np.int32)
        TritonSampling.count_tokens(tokens, len(sequence.prompt_ids), row, self.counts, self._prompt)

    def _upload(self, values: list[float] | list[int], dtype: type) -> torch.Tensor:
        return upload(np.array(values, dtype), self._device)
