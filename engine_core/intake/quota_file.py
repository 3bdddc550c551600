"""What tenants have used of their quotas at one engine core, in a file beside the core's socket.

The cores whose sockets share a folder read one another's files, and a core that starts reads its own of its
past life as well (quota_exchange.py). A file has names of tenants and counts, is written as a whole, and is
readable by its user alone.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pagewire.ipc import transport

log = logging.getLogger(__name__)

_SUFFIX = ".quotas"
_MOST_BYTES = 16 << 20
_MOST_CORES = 64


@dataclass(frozen=True, slots=True)
class TenantUse:
    """Of one tenant, at one core."""

    per_minute: int  # its quota of tokens; 0: none
    ahead_s: float  # by which its clock was ahead when the file was written; see quotas.py
    charged: int  # tokens, since the start of the core
    num_requests: int  # in flight
    num_sequences: int


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
