"""`pagewire ranks --launcher ray`: an actor of Ray on each other host, which runs `pagewire ranks` there.

Ray chooses the hosts and starts processes; plans, results and tensors never go through it. An actor that has
ended is placed anew, and its ranks find the group as after any death of a host.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pagewire import flags
from pagewire.config import RanksConfig
from pagewire.errors import StartupError
from pagewire.host.spawn import Heartbeat, Status
from pagewire.launchers import WHAT
from pagewire.supervisor.events import STOPPING, Signals
from pagewire.supervisor.rank_processes import pause_after

log = logging.getLogger(__name__)

_LOOK_S = 0.25
_CHECK_S = 1.0
"""Seconds between two looks at the head of the cluster."""
_REPORT_S = 5.0
"""Seconds between two lines about what the cluster lacks."""


@dataclass(frozen=True, slots=True)
class End:
    """How `pagewire ranks`, or the actor that ran it, has ended."""

    why: str
    failure: StartupError | None = None
    """What another start would meet, too."""


class Host(Protocol):
    """An actor that runs `pagewire ranks`."""

    def look(self) -> str | End | None:
        """Returns the name of its host, once; how it has ended; None where nothing is new. Does not wait."""
        ...

    def close(self) -> None:
        """Kills the actor, and with it what it runs."""
        ...


class Cluster(Protocol):
    """A connection to Ray. All that it starts ends with this process."""

    def place(self, num_hosts: int, num_cpus: int) -> None:
        """Reserves CPUs on each of so many other nodes, as soon as they have them."""
        ...

    def missing(self) -> str:
        """Returns what the cluster lacks; "": the CPUs are reserved. Does not wait."""
        ...

    def start(self, bundle: int, arguments: list[str], key: str) -> Host:
        """Runs `pagewire ranks ARGUMENTS` where CPUs are reserved, or as soon as they are. key: the content
        of its --curve-key."""
        ...

    def why_headless(self) -> str:
        """Returns why the head of the cluster cannot be reached; "": it can. Waits a second at most."""
        ...

    def close(self) -> None:
        """Disconnects, which ends all actors, and frees what is reserved."""
        ...


class RayLauncher:
    """The ranks of all hosts but the first."""

    def __init__(self, config: RanksConfig, connect: Callable[[str], Cluster]) -> None:
        """connect: takes --ray-address. Raises StartupError for keys that cannot be read."""
        self._config, self._connect = config, connect
        self._status = Status()
        self._heartbeat = Heartbeat(self._status.beat)
        try:
            self._key = Path(config.curve_key).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            why = f"{config.curve_key}: {getattr(error, 'strerror', None) or 'it is not text'}"
            raise StartupError("cannot use --curve-key", why) from error

    def run(self) -> int:
        """Returns 0 after a signal. Raises StartupError for ranks that cannot start."""
        config = self._config
        # Ray has handlers of its own for signals, until those here are set.
        with self._reporting():
            connected = self._connect(config.ray_address)
        with closing(connected) as cluster, Signals() as signals, self._reporting():
            cluster.place(config.nnodes - 1, config.ranks_per_node * max(config.threads, 1))
            slots = [_HostSlot(config, number, cluster, self._key) for number in range(1, config.nnodes)]
            report_at, announced = time.monotonic() + _REPORT_S, False
            head = _Head(cluster, config.hang_timeout / 2)
            while not signals.wait(_LOOK_S) & STOPPING:
                self._heartbeat()
                head.look()
                states = [slot.update() for slot in slots]
                if not announced and all(states):
                    self._status.ready()
                    announced = True
                if all(states):
                    report_at = time.monotonic() + _REPORT_S
                elif time.monotonic() >= report_at:
                    report_at = time.monotonic() + _REPORT_S
                    if missing := cluster.missing():
                        log.info("waiting for Ray: %s", missing)
            for slot in slots:
                slot.close()
        return 0

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Tells the parent process of a StartupError, before anything is closed: where the head of the
        cluster is gone, that ends this process."""
        try:
            yield
        except StartupError as error:
            self._status.failed(error)
            raise


class _Head:
    """The head of the cluster, of whose end Ray tells a process of the cluster after a minute only."""

    def __init__(self, cluster: Cluster, patience: float) -> None:
        """patience: seconds without an answer, at least two looks; 0: any number of them."""
        self._cluster, self._patience = cluster, patience
        self._heard = self._looked = time.monotonic()

    def look(self) -> None:
        """Raises StartupError where the head has not answered for too long."""
        now = time.monotonic()
        if not self._patience or now < self._looked + _CHECK_S:
            return
        self._looked = now
        why = self._cluster.why_headless()
        if not why:
            self._heard = now
        elif now - self._heard >= max(self._patience, 2 * _CHECK_S):
            raise StartupError(WHAT, why, "start the cluster again: ray start --head")


class _HostSlot:
    """One host of the group, and the actor that is or will be there."""

    def __init__(self, config: RanksConfig, number: int, cluster: Cluster, key: str) -> None:
        own = replace(config, node_rank=number, launcher="none", ray_address="auto", curve_key="")
        self._arguments = flags.to_arguments(replace(own, process_name=""), RanksConfig)
        self._longest, self._cluster, self._key = config.max_restart_pause, cluster, key
        self._name = f"the ranks of --node-rank {number}"
        self._bundle = number - 1
        self._actor: Host | None = None
        self._runs = False
        self._began = self._start_at = time.monotonic()
        self._pause = 0.0

    def update(self) -> bool:
        """Starts an actor that is due, and takes note of one that has ended. Returns whether one runs. Raises
        StartupError for ranks that cannot start."""
        if self._actor is None:
            if time.monotonic() >= self._start_at:
                self._actor = self._cluster.start(self._bundle, self._arguments, self._key)
                self._began = time.monotonic()
            return False
        match self._actor.look():
            case End(why, failure):
                self.close()
                if failure is not None:
                    raise failure
                self._pause = pause_after(time.monotonic() - self._began, self._pause, self._longest)
                self._start_at = time.monotonic() + self._pause
                log.warning("%s are gone: %s; they start again in %.1f s", self._name, why, self._pause)
            case str(host):
                self._runs = True
                log.info("%s start on %s", self._name, host)
        return self._runs

    def close(self) -> None:
        if self._actor is not None:
            self._actor.close()
        self._actor, self._runs = None, False
