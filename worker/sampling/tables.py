"""Tables on the device for state that few rows have: slots, and one item per slot."""

from typing import Any

import numpy as np
import torch

from worker.upload import upload


class Slots:
    """Slots of the rows that use a feature: small numbers, reused.

    A feature's tables are indexed by slot, so that their memory grows with the number of users and not with
    the number of rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def __getitem__(self, row: int) -> int:
        return self._slots[row]

    def get(self, row: int, default: int) -> int:
        """Returns the row's slot, or the default if it has none."""
        return self._slots.get(row, default)

    def take(self, row: int) -> int:
        """Returns the row's slot; a new one if it has none."""
        if row not in self._slots:
            # every number below the sum is in use or free
            self._slots[row] = self._free.pop() if self._free else len(self._slots)
        return self._slots[row]

    def remove(self, row: int) -> None:
        """Frees the row's slot, if it has one."""
        if row in self._slots:
            self._free.append(self._slots.pop(row))

    def index(self, rows: list[int]) -> torch.Tensor:
        """Returns the slots [U] int64 of rows [U] that have one."""
        return torch.tensor([self._slots[row] for row in rows], device=self._device)


class Table:
    """One item per slot, all of one shape: data [capacity, n, ...].

    Capacity and shape grow, at least by doubling, when a slot or an item does not fit. An item shorter than n
    is padded by repeating its first entry, so that a set of tokens stays the same, and along the other
    dimensions with `fill`; an empty item is filled with `fill`.

        slot   item       data
        0      a b c d    a b c d
        1      (free)     undefined
        2      e f        e f e e
    """

    def __init__(self, shape: tuple[int, ...], fill: float, dtype: torch.dtype, device: torch.device) -> None:
        self._fill = fill
        self.data = torch.full((0, *shape), fill, dtype=dtype, device=device)

    def set(self, slot: int, item: torch.Tensor) -> None:
        """Writes an item to a slot."""
        self._grow((slot + 1, *item.shape))
        self.data[slot] = self._pad(item[None], self.data.shape[1:])[0]

    def copy(self, slot: int, source: int) -> None:
        """Copies the item of slot `source`."""
        self.set(slot, self.data[source])

    def gather(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns the items [U, n, ...] of slots [U] int64."""
        return self.data.index_select(0, slots)

    def widen(self, n: int) -> None:
        """Makes room for items of length n."""
        self._grow((0, n, *self.data.shape[2:]))

    def _grow(self, needed: tuple[int, ...]) -> None:
        """Makes every dimension of the data at least as large as needed."""
        old = self.data
        if all(need <= size for size, need in zip(old.shape, needed, strict=True)):
            return
        pairs = zip(old.shape, needed, strict=True)
        shape = [size if need <= size else max(need, 2 * size) for size, need in pairs]
        self.data = old.new_full(shape, self._fill)
        self.data[: old.shape[0]] = self._pad(old, self.data.shape[1:])

    def _pad(self, items: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns items [N, ...] padded to [N, *shape]."""
        padded = items.new_full((items.shape[0], *shape), self._fill)
        padded[tuple(slice(size) for size in items.shape)] = items
        if 0 < items.shape[1] < shape[0]:
            padded[:, items.shape[1] :] = padded[:, :1]
        return padded


class TableRows:
    """Rows that have an item in each of some tables. Base class of worker.sampling.rows.Processors."""

    def __init__(self, device: torch.device, *tables: Table) -> None:
        self.device, self.slots, self._tables = device, Slots(device), tables

    def __contains__(self, row: object) -> bool:
        return row in self.slots

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the items of its source."""
        if source_row in self.slots:
            slot, source = self.slots.take(row), self.slots[source_row]
            for table in self._tables:
                table.copy(slot, source)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        self.slots.remove(row)

    def upload(self, values: list[Any], dtype: type) -> torch.Tensor:
        """Returns numbers as a tensor on the device."""
        return upload(np.array(values, dtype), self.device)
