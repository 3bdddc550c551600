"""The worker's rows: which are free, and which the worker has yet to remove."""


class RowSlots:
    """RowSlots 0 to num_rows - 1, each free or held by one sequence."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.free = list(range(num_rows - 1, -1, -1))  # a stack: low numbers first
        self._removed: list[int] = []  # since take_removed()

    def take(self) -> int:
        """Returns a free row; the caller has checked that there is one."""
        return self.free.pop()

    def give_back(self, row: int, *, begun: bool) -> None:
        """Frees a row. begun: the worker has it, and must remove it."""
        self.free.append(row)
        if begun:
            self._removed.append(row)

    def begin_again(self, row: int) -> None:
        """Removes a row at the worker that begins again in the next plan; it stays held."""
        self._removed.append(row)

    def take_removed(self) -> list[int]:
        """RowSlots that the worker is to drop in the next plan, before new ones begin in it."""
        removed, self._removed = self._removed, []
        return removed
