"""Penalties, bias and allowed tokens on the device: what kernels.gpu.adjust_logits needs, in slots."""

import numpy as np
import torch

from kernels.gpu.adjust_logits import Adjustments, adjust_logits
from kernels.gpu.count_tokens import count_tokens
from worker.cuda.upload import upload
from worker.sampling.batch import NewSequence
from worker.sampling.penalties import OFF
from worker.sampling.tables import Slots, Table

ALL = -1
"""A word of an allowed set in which every token is."""


class Adjusting:
    """A slot has counts of all tokens, 4 * V bytes: 600 KB for 152,000. There are as many as there have been
    users at a time, at least doubled where they do not suffice."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        words = -(-vocab_size // 32)
        self._slots = Slots(device)
        self._strengths = Table((3,), 0.0, torch.float32, device)
        self._counts = Table((vocab_size,), 0, torch.int32, device)
        self._prompt = Table((words,), 0, torch.int32, device)
        self._bias_ids = Table((1,), 0, torch.int32, device)
        self._bias = Table((1,), 0.0, torch.float32, device)
        self._num_biased = Table((1,), 0, torch.int32, device)
        self._allowed = Table((words,), ALL, torch.int32, device)
        self._tables = (
            self._strengths,
            self._counts,
            self._prompt,
            self._bias_ids,
            self._bias,
            self._num_biased,
            self._allowed,
        )

    @property
    def counts(self) -> torch.Tensor:
        """[S, V] int32: of each token in the output."""
        return self._counts.data

    def add_row(self, row: int, sequence: NewSequence) -> int:
        """The row's slot; -1: none. Raises ValueError when the model has none of the allowed tokens."""
        names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
        strengths = [sequence.scalar(name, off) for name, off in zip(names, OFF, strict=True)]
        bias = {
            token: value
            for token, value in sequence.new.sampling.logit_bias.items()
            if token < self._vocab_size
        }
        allowed = self._allowed_words(sequence)
        if tuple(strengths) == OFF and not bias and allowed is None:
            return -1
        slot = self._slots.take(row)
        self._strengths.set(slot, self._upload(strengths, np.float32))
        self._num_biased.set(slot, self._upload([len(bias)], np.int32))
        self._bias_ids.set(slot, self._upload(list(bias), np.int32))
        self._bias.set(slot, self._upload(list(bias.values()), np.float32))
        self._begin_history(slot, sequence if tuple(strengths) != OFF else None)
        words = np.full(self._prompt.data.shape[1], ALL, np.int32) if allowed is None else allowed
        self._allowed.set(slot, upload(words, self._device))
        return slot

    def fork_row(self, row: int, source_row: int) -> int:
        """The copy's slot, with the same in it; -1: none."""
        if source_row not in self._slots:
            return -1
        slot, source = self._slots.take(row), self._slots[source_row]
        for table in self._tables:
            table.copy(slot, source)
        return slot

    def remove_row(self, row: int) -> None:
        """Takes the slot back. What is written there next is behind the steps that are still running."""
        self._slots.remove(row)

    def apply(self, logits: torch.Tensor, batch_index: torch.Tensor, slots: torch.Tensor) -> None:
        """logits [A, V] float32, in place; batch_index [A]: 0, 1, ...; slots [A]; -1: none."""
        state = Adjustments(
            self._strengths.data,
            self._counts.data,
            self._prompt.data,
            self._bias_ids.data,
            self._bias.data,
            self._num_biased.data,
            self._allowed.data,
        )
        adjust_logits(logits, batch_index, slots, state)

    def _begin_history(self, slot: int, sequence: NewSequence | None) -> None:
        """Counts what the sequence has said. None: nobody asks."""
        for table in (self._counts, self._prompt):
            table.set(slot, table.data.new_zeros(table.data.shape[1:]))
        if sequence is not None:
            tokens = np.array(sequence.prompt_ids + sequence.output_ids, np.int32)
            prompt_len = len(sequence.prompt_ids)
            count_tokens(upload(tokens, self._device), prompt_len, slot, self._counts.data, self._prompt.data)

    def _allowed_words(self, sequence: NewSequence) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        """The set as bits [W] int32; None: all tokens."""
        allowed = sequence.new.sampling.allowed_token_ids
        if not allowed:
            return None
        mask = np.zeros(32 * self._prompt.data.shape[1], np.uint8)
        token_ids = np.array([token for token in allowed if token < self._vocab_size], np.int64)
        if not len(token_ids):
            raise ValueError(f"sampling.allowed_token_ids: none is below the vocabulary's {self._vocab_size}")
        mask[token_ids] = 1
        return np.packbits(mask, bitorder="little").view(np.int32)

    def _upload(self, values: list[float] | list[int], dtype: type) -> torch.Tensor:
        return upload(np.array(values, dtype), self._device)
