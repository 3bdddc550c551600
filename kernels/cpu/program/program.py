"""A model's forward pass as one call: the program that kernels.cpu.program.recording makes of its layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from kernels.batch import InputBatch
from kernels.cpu.runtime.records import ProgramRecord

if TYPE_CHECKING:  # it compiles when it is imported
    from kernels.cpu.runtime.thread_pool import Program, Team

Records = npt.NDArray[np.int64]
"""[records, words]: what a program's operations read; words of a step are written before it runs."""
Fixed = Callable[[InputBatch], bool]
Update = Callable[[InputBatch, Records], None]
"""Writes what a step changes into the records, or computes an input of the program."""
ROWS = ProgramRecord.word("rows")


class CannotRecord(Exception):
    """An operation that no program has. A message says which, the traceback the layer."""


@dataclass
class Computed:
    """What a program has computed for the last batch beside its hidden states."""

    logits: torch.Tensor | None = None  # [A, V] float32, of the tokens that are sampled from
    tokens: torch.Tensor | None = None  # [A] int64, as of kernels.cpu.sampling.choose
    most_logits: int = 0  # that a batch may want


class StepProgram:
    """The program of one model on one cache."""

    def __init__(
        self,
        program: "Program",
        factors: npt.NDArray[np.int64],
        team: "Team",
        hidden: torch.Tensor,
        computed: Computed,
        on_batch: Sequence[Update],
        on_run: Sequence[tuple[Update, Fixed]],
        memory: object,
    ) -> None:
        """factors: rows of each record for each token. hidden: [M, E], where the program leaves the hidden
        states. computed: written by updates. memory: what records point at. on_batch: called for a batch
        whose tensors lie elsewhere than those of the last one. on_run: called before each run, with what says
        whether that would change nothing, see ProgramWriter.on_run."""
        self.program, self.hidden, self.computed, self._factors = program, hidden, computed, factors
        self._team, self._on_batch, self._on_run, self._memory = team, on_batch, on_run, memory
        self._batch: InputBatch | None = None
        self._first_rows = hidden
        self.check: Callable[[], None] = lambda: None  # behind a run: raises where another rank has ended

    @property
    def most_tokens(self) -> int:
        """The tokens that a step may have."""
        return self.hidden.shape[0]

    def first_rows(self, tokens: int) -> torch.Tensor:
        """Returns `hidden` of so many tokens: the same tensor as in the last call, for as many."""
        if len(self._first_rows) != tokens:
            self._first_rows = self.hidden[:tokens]
        return self._first_rows

    def is_fixed(self, batch: InputBatch) -> bool:
        """Whether another run of the batch that ran last needs no update, after numbers in its tensors have
        changed."""
        return batch is self._batch and all(is_fixed(batch) for _, is_fixed in self._on_run)

    def run(self, batch: InputBatch) -> None:
        """Computes a step of T tokens: the first T rows of `hidden`, which the next run overwrites.

        The same batch object as in the last run means that only numbers in its tensors have changed.
        """
        records = self.program.records
        if batch is not self._batch:
            records[:, ROWS] = self._factors * len(batch.token_ids)
            for update in self._on_batch:
                update(batch, records)
            self._batch = batch
        for update, _ in self._on_run:
            update(batch, records)
        self._team.run(self.program)
        self.check()
