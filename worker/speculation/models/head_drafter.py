"""Runs a head on the rows of the target.

It is a draft model (ModelDrafter) with two differences. The head computes a position from the
features of that position and the token behind it, so its rows are those of the target without their first
token. And what it computed from features of its own, behind the last token of a row, it computes again once
the target has computed these positions: every token of a draft that was accepted, at once.
"""

import copy
from collections.abc import Sequence

import numpy as np

from kernels.ops.attention.ragged import Integers
from worker.executor.backend import Backend
from worker.speculation.models.draft_slots import DraftSlots
from worker.speculation.models.features import FeatureCache
from worker.speculation.models.model_drafter import CATCH_UP, ModelDrafter
from worker.step.plan_reader import Swaps
from worker.step.rows import RowTable


def rows_of_head(rows: RowTable) -> RowTable:
    """Returns a table of the same rows without their first tokens; block tables and tokens are the same
    memory, lengths are not."""
    shifted = copy.copy(rows)
    shifted.token_ids = rows.token_ids[:, 1:]
    shifted.prompt_lens, shifted.num_tokens = np.zeros_like(rows.prompt_lens), np.zeros_like(rows.num_tokens)
    shifted.num_computed = np.zeros_like(rows.num_computed)
    return shifted


class HeadDrafter(ModelDrafter):
    """Drafts by a head, and moves its features with the blocks."""

    def __init__(
        self,
        backend: Backend,
        positions: "memoryview[int]",
        features: FeatureCache,
        rows: tuple[RowTable, RowTable],
        budget: int,
        longest: int,
    ) -> None:
        """rows: of the target, and rows_of_head(). longest: tokens of a draft. Others: see ModelDrafter."""
        super().__init__(backend, positions, DraftSlots(rows[1]), rows[1], budget, max(CATCH_UP, longest + 1))
        self._target_rows, self._features = rows[0], features

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        index, target, own = np.array(rows, np.int64), self._target_rows, self._rows
        for lengths, of_target in (
            (own.num_tokens, target.num_tokens),
            (own.num_computed, target.num_computed),
            (own.prompt_lens, target.prompt_lens),
        ):
            lengths[index] = of_target[index] - 1
        drafts = super().draft(rows, most)
        drafted = np.array(list(map(len, drafts)))
        some = drafted > 0
        self.slots.write(index[some], own.num_tokens[index[some]], drafted[some])
        return drafts

    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        super().move_blocks(swaps, sources, targets)
        self._features.move_blocks(swaps, sources, targets)
