"""Quotas that hold for several engine cores together, and across the restart of one.

Each core charges what it computes to its own clocks (quotas.py), and tells the others once a second how much
that was, by file (quota_file.py); they charge it to theirs. So every core's clock of a tenant stands at most
about a second behind what all cores together have charged, and a tenant may exceed a quota by what the other
cores admit within that second: never by more than one quota per further core. Requests in flight are counted
in the same way; those of a core whose file is three seconds old are not counted any more. A core that starts
takes the clocks from the files, its own among them.
"""

import time
from collections.abc import Callable

from engine_core.intake.quota_file import CoreUse, QuotaFile
from engine_core.intake.quotas import Quotas

INTERVAL_S = 1.0
STALE_S = 3.0
"""Age of a file after which its core counts as gone, with what it had in flight."""


class QuotaExchange:
    """Exchanges one core's charges for those of the others. Belongs to the step loop's thread."""

    def __init__(
        self, quotas: Quotas, file: QuotaFile, start: int, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """start: number of this start of the core. wall_clock: seconds since 1970."""
        self._quotas, self._file, self._start, self._wall_clock = quotas, file, start, wall_clock
        self._next = 0.0
        self._written: CoreUse | None = None
        self._seen: dict[
            tuple[str, int, str], int
        ] = {}  # tokens of (file, start, tenant) that are charged here
        self._has_begun = False

    def run(self, now: float, *, is_idle: bool) -> None:
        """Exchanges if a second has passed. is_idle: nothing is in flight, so that this may be the last
        call for long: what has changed is written at once."""
        if now >= self._next:
            self._next = now + INTERVAL_S
            if not self._has_begun:
                self._begin(now)
            self._take(now)
            self._write(now)
        elif is_idle and self._has_begun and self._written is not None and self._written.tenants:
            self._write(now)

    def _begin(self, now: float) -> None:
        """Takes over the clocks as the files of all cores have them."""
        self._has_begun = True
        own, others = self._file.read_own(), self._file.read_others()
        for use in [own, *others.values()]:
            if use is None:
                continue
            age = max(self._wall_clock() - use.written_at, 0.0)
            for tenant, each in use.tenants.items():
                self._quotas.restore(tenant, each.per_minute, each.ahead_s - age, now)
        for name, use in others.items():
            for tenant, each in use.tenants.items():
                self._seen[name, use.start, tenant] = each.charged

    def _take(self, now: float) -> None:
        """Charges what others have charged since the last time, and counts what they have in flight."""
        elsewhere: dict[str, tuple[int, int]] = {}
        seen: dict[tuple[str, int, str], int] = {}
        for name, use in self._file.read_others().items():
            is_alive = self._wall_clock() - use.written_at < STALE_S
            for tenant, each in use.tenants.items():
                key = name, use.start, tenant
                before = self._seen.get(key, 0)
                seen[key] = each.charged
                if each.per_minute and each.charged > before:
                    self._quotas.charge_elsewhere(tenant, each.per_minute, each.charged - before, now)
                if is_alive:
                    requests, sequences = elsewhere.get(tenant, (0, 0))
                    elsewhere[tenant] = requests + each.num_requests, sequences + each.num_sequences
        self._seen, self._quotas.elsewhere = seen, elsewhere

    def _write(self, now: float) -> None:
        """Writes what has changed; while something is in flight also that the core lives."""
        tenants = self._quotas.uses(now)
        before = self._written.tenants if self._written is not None else {}
        if tenants or before:
            self._written = CoreUse(self._start, self._wall_clock(), tenants)
            self._file.write(self._written)
