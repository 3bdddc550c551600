"""Quotas that hold for several engine cores together, and across the restart of one.

Each core charges what it computes to its own clocks (quotas.py), and tells the others once a second how much
that was; they charge it to theirs. So every core's clock of a tenant stands at most about a second behind
what all cores together have charged, and a tenant may exceed a quota by what the other cores admit within
that second: never by more than one quota per further core. Requests in flight are counted in the same way;
those of a core whose file is three seconds old are not counted any more. A core that starts takes the clocks
from the files, its own among them.

Cores tell one another by files beside their sockets: those whose sockets share a folder read one another's
files. A file has names of tenants and counts, is written as a whole, and is readable by its user alone.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from engine_core.intake.quotas import Quotas, TenantUse
from pagewire.ipc import transport

log = logging.getLogger(__name__)

_SUFFIX = ".quotas"
_MOST_BYTES = 16 << 20
_MOST_CORES = 64
INTERVAL_S = 1.0
STALE_S = 3.0
"""Age of a file after which its core counts as gone, with what it had in flight."""


@dataclass(frozen=True, slots=True)
class CoreUse:
    """The content of a file."""

    start: int  # number of the core's start
    written_at: float  # seconds since 1970
    tenants: Mapping[str, TenantUse] = field(default_factory=dict)


class QuotaFile:
    """The file of a core, and those of its neighbours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False

    def write(self, use: CoreUse) -> None:
        """Replaces the file. An error is logged, once."""
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            with open(fresh, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                json.dump(asdict(use), file)
            os.replace(fresh, self._path)
        except OSError as error:
            if not self._has_failed:
                log.warning("quotas are not shared with other engine cores: %s", error.strerror)
            self._has_failed = True

    def read_own(self) -> CoreUse | None:
        """Returns what the core had written in its past life."""
        return _read(self._path)

    def read_others(self) -> dict[str, CoreUse]:
        """Returns what other cores have written, by the names of their files."""
        try:
            paths = sorted(path for path in self._path.parent.glob(f"*{_SUFFIX}") if path != self._path)
        except OSError:
            return {}
        read = {path.name: _read(path) for path in paths[:_MOST_CORES]}
        return {name: use for name, use in read.items() if use is not None}


def quota_path(listen: str) -> Path:
    """Returns the path of the file of a core that listens on this address."""
    if listen.startswith("ipc://"):
        return Path(listen.removeprefix("ipc://") + _SUFFIX)
    return transport.default_folder() / (listen.rpartition("/")[2].replace(":", "-") + _SUFFIX)


def _read(path: Path) -> CoreUse | None:
    """Returns None for a file that is not there, or is not one of ours."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(path.read_bytes())
        tenants = {str(name): TenantUse(**use) for name, use in content["tenants"].items()}
        return CoreUse(int(content["start"]), float(content["written_at"]), tenants)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


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
