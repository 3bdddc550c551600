"""What proposes tokens. A drafter has no influence on outputs: it decides how many steps they take."""

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes tokens for rows that decode."""

    @property
    def is_free(self) -> bool:
        """Whether draft() takes so little that it may be called only to learn how long drafts would be, any
        number of times between two tokens of a row."""

    @property
    def computed_prompts(self) -> bool:
        """Whether the last draft() took longer than others, since it computed prompts."""

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        """Returns for each of the rows [N] up to most [N] tokens that may follow its own; none: it has no
        idea. most: at least 1."""

    def remove_row(self, row: int) -> None:
        """Ends a row; one that was never drafted for is ignored."""
