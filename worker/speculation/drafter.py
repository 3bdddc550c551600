"""What proposes tokens. A drafter has no influence on outputs: it decides how many steps they take."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kernels.ops.attention.ragged import Integers
from worker.grammar.rows import GrammarRows
from worker.step.plan_reader import RowFeature, Swaps


class Drafter(ABC):
    """Proposes tokens for rows that decode."""

    is_free = True
    """Whether draft() takes so little that it may be called only to learn how long drafts would be, any
    number of times between two tokens of a row."""
    computed_prompts = False
    """Whether the last draft() took longer than others, since it computed prompts."""

    @abstractmethod
    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        """Returns for each of the rows [N] up to most [N] tokens that may follow its own; none: it has no
        idea. most: at least 1."""

    @abstractmethod
    def remove_row(self, row: int) -> None:
        """Ends a row; one that was never drafted for is ignored."""


class RowDrafter(Drafter, RowFeature):
    """A drafter that is told of rows, too."""


class BlockDrafter(RowDrafter):
    """A drafter with a cache of its own, with the blocks of the target's."""

    @abstractmethod
    def move_blocks(self, swaps: Swaps | None, sources: Integers, targets: Integers) -> None:
        """Follows blocks that went to host memory and came back, then were copied. sources, targets: [C]."""

    @abstractmethod
    def write_blocks(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """Takes that the target computes tokens of the rows [R]. Raises PlanError where there can be no such
        tokens."""


class ForcedDrafter(Drafter):
    """Drafts what a grammar forces: the names and signs of a JSON schema, for one, between the values.

    Peers insert such text without asking the model (jump-forward decoding), which changes how the output is
    split into tokens, and so what follows. Here it is a draft: it is accepted where the model samples the
    same tokens.
    """

    def __init__(self, grammars: GrammarRows) -> None:
        self._grammars = grammars

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._grammars.forced(row)[:length] for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        """The grammar ends with the backend's row."""
