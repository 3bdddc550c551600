"""Drafts what followed the row's last tokens in earlier outputs of the same tenant.

An agent that writes the same file again, or an extraction with the same names, repeats other requests rather
than itself. Tenants never share: how long an answer takes would tell one what another one wrote.
"""

from collections import OrderedDict
from collections.abc import Sequence

from pagewire.internal.v1 import worker_pb2
from worker.speculation.shared_texts import RUN, SharedTexts
from worker.step.rows import RowTable

MAX_TENANTS = 64
"""Whose outputs are kept; then those of the one that has been idle for longest go."""


class SharedLookupDrafter:
    """A worker.speculation.drafter.Drafter and a worker.step.plan_reader.RowFeature."""

    is_free = True
    computed_prompts = False

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
