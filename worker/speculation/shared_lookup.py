"""Drafts what followed the row's last tokens in earlier outputs of the same tenant.

An agent that writes the same file again, or an extraction with the same names, repeats other requests rather
than itself. Tenants never share: how long an answer takes would tell one what another one wrote.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from pagewire.internal.v1 import worker_pb2
from worker.speculation.drafter import Drafter
from worker.step.rows import RowTable

RUN = 4
"""Tokens that are looked up."""
MAX_TENANTS = 64
"""Whose outputs are kept; then those of the one that has been idle for longest go."""


class _Text:
    """Outputs that are kept together."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self._places: dict[tuple[int, ...], int] = {}

    def add(self, output: Sequence[int]) -> None:
        """Appends an output."""
        begin = len(self.tokens)
        self.tokens.extend(output)
        runs = zip(*(output[i:] for i in range(RUN)), strict=False)
        self._places.update(zip(runs, range(begin + RUN, len(self.tokens)), strict=False))

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed the run; none: it is not known."""
        place = self._places.get(run)
        return self.tokens[place : place + most].tolist() if place is not None else []


class SharedTexts:
    """Outputs of one tenant, and what followed a run of tokens in them: bounded memory, O(1) per token.

    Outputs stand one behind the other. A table holds the place behind the latest occurrence of each run of 4
    tokens; runs across two outputs are left out. There are two such texts: once the young one is half of what
    may be kept, it becomes the old one, and the old one is gone. Runs are looked for in the young one first.
    """

    def __init__(self, most: int) -> None:
        """most: tokens that are kept; tables of some hundred bytes per token come with them."""
        self._half = max(1, most // 2)
        self._young, self._old = _Text(), _Text()

    @property
    def num_tokens(self) -> int:
        """Tokens that are kept."""
        return len(self._young.tokens) + len(self._old.tokens)

    def add(self, output: Sequence[int]) -> None:
        """Keeps an output, of a long one its end."""
        output = output[-self._half :]
        if len(self._young.tokens) + len(output) > self._half:
            self._young, self._old = _Text(), self._young
        self._young.add(output)

    def follow(self, run: tuple[int, ...], most: int) -> list[int]:
        """Returns up to so many tokens that followed a run of RUN tokens; none: it is not known."""
        return self._young.follow(run, most) or self._old.follow(run, most)


class SharedLookupDrafter(Drafter):
    """Looks up in outputs of the row's tenant. A worker.step.plan_reader.RowFeature, too."""

    def __init__(self, rows: RowTable, most: int) -> None:
        """most: tokens that are kept of each tenant."""
        self._rows, self._most = rows, most
        self._tenants: dict[int, str] = {}  # by row
        self._texts: OrderedDict[str, SharedTexts] = OrderedDict()

    def add_row(self, row: int, new: worker_pb2.NewRow, prompt_ids: list[int], output_ids: list[int]) -> None:
        """Begins a row."""
        self._tenants[row] = new.tenant

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another."""
        self._tenants[row] = self._tenants[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row, and keeps its output: the tokens up to the last one that was sampled."""
        tenant = self._tenants.pop(row, None)
        if tenant is None:
            return
        first, end = int(self._rows.prompt_lens[row]), int(self._rows.num_computed[row]) + 1
        if end - first <= RUN:
            return
        texts = self._texts.setdefault(tenant, SharedTexts(self._most))
        texts.add(self._rows.token_ids[row, first:end].tolist())
        self._texts.move_to_end(tenant)
        if len(self._texts) > MAX_TENANTS:
            self._texts.popitem(last=False)

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._look_up(row, length) for row, length in zip(rows, most, strict=True)]

    def _look_up(self, row: int, most: int) -> list[int]:
        texts, end = self._texts.get(self._tenants.get(row, "")), int(self._rows.num_tokens[row])
        if texts is None or end < RUN:
            return []
        return texts.follow(tuple(self._rows.token_ids[row, end - RUN : end].tolist()), most)
