"""Ranks on other hosts: where they connect, and which of them have not come yet."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.io.rank import Rank

log = logging.getLogger(__name__)

REPORT_S = 5.0
"""Seconds between two lines about ranks that have not come."""


@dataclass(frozen=True, slots=True)
class RemoteRanks:
    """The ranks of a group that are not on this host, which has the first ones."""

    address: str
    """Where they connect, tcp://HOST:PORT."""
    count: int
    per_host: int


class MissingRanks:
    """Logs, every few seconds, which ranks have not connected yet, and of which hosts."""

    def __init__(self, ranks: Sequence[Rank], remote: RemoteRanks) -> None:
        self._ranks, self._remote = ranks, remote
        self._next = time.monotonic() + REPORT_S

    def report(self) -> None:
        """Logs, if it is time. To be called often."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REPORT_S
            if missing := self.describe():
                log.info("waiting at %s for %s", self._remote.address, missing)

    def describe(self) -> str:
        """Returns the missing ranks by host; "": all have come."""
        by_host: dict[int, list[int]] = {}
        for rank in self._ranks:
            if rank.peer is None:
                by_host.setdefault(rank.number // self._remote.per_host, []).append(rank.number)
        return "; ".join(
            f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} of --node-rank {node}"
            for node, numbers in by_host.items()
        )
