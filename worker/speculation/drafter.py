"""What proposes tokens. A drafter has no influence on outputs: it decides how many steps they take."""

from typing import Protocol


class Drafter(Protocol):
    """Proposes tokens for rows that decode."""

    def draft(self, row: int, most: int) -> list[int]:
        """Returns up to `most` tokens that may follow those of the row; none: it has no idea.

        Called any number of times between two tokens of a row.
        """

    def remove_row(self, row: int) -> None:
        """Ends a row; one that was never drafted for is ignored."""
