"""`pagewire serve`: starts engine cores and frontends, restarts those that die, and stops them together.

The workers of engine cores are children of this process, too (worker_processes.py). Children die with this
process, even if it is killed with SIGKILL (parent-death signal). A child that fails while the service starts,
or that dies too often, ends the service with its reason as the error."""

import contextlib
import logging
import selectors
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pagewire import flags, logs
from pagewire.checkpoints.paths import default_served_name
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.liveness import AwakeTime
from pagewire.ipc.runtime_folder import runtime_folder
from pagewire.supervisor.child import Child, Facts
from pagewire.supervisor.events import STOPPING, LoopCalls, Signals
from pagewire.supervisor.metrics import Counters, end_of, watch
from pagewire.supervisor.notices import LoadingLine
from pagewire.supervisor.process_specs import (
    Ports,
    engine_slots,
    frontend_slots,
    gateway_slots,
    launcher_slots,
    reserve_ports,
    share_cores,
    with_cache_key,
)
from pagewire.supervisor.restart_slot import RestartSlot, label
from pagewire.telemetry.pages import MergedPages
from pagewire.telemetry.watch import PORT, Watch

log = logging.getLogger(__name__)

_CHECK_S = 0.5
"""Seconds between two checks for hung children."""
_ENGINE_GRACE_S = 1.0
"""Seconds from SIGTERM to SIGKILL; an engine core has nothing to finish once its frontends are gone."""
_EXTRA_GRACE_S = 1.0
"""Seconds that a frontend gets beyond --drain-delay and --shutdown-grace."""


class Stopped(Exception):
    """A signal asked the supervisor to stop."""


class Supervisor:
    """One service; run() starts, watches and stops it."""

    def __init__(self, config: ServeConfig, on_ready: Callable[[Facts], None]) -> None:
        """on_ready: called once, with the facts that the children reported."""
        self._config = config
        self._on_ready = on_ready
        self._status = process.Status()
        self._progress = LoadingLine(sys.stderr)
        self._selector = selectors.DefaultSelector()
        self._awake = AwakeTime(time.monotonic())
        self._signals = Signals()
        self._watch = Watch(config, "supervisor")
        self._counters = Counters()
        self._launchers: list[RestartSlot] = []
        self._engines: list[RestartSlot] = []
        self._frontends: list[RestartSlot] = []
        self._gateways: list[RestartSlot] = []

    def run(self) -> int:
        """Returns 0 after a signal. Raises StartupError when the service cannot continue."""
        flags.forget_environment(ServeConfig)
        with self._signals, contextlib.ExitStack() as stack:
            self._selector.register(self._signals, selectors.EVENT_READ)
            folder = stack.enter_context(runtime_folder())
            stack.callback(self._stop)
            try:
                self._open_watch(folder, stack)
                ports = reserve_ports(self._config, stack)
                self._start(folder, ports)
                while any(slot.child is None or slot.child.facts is None for slot in self._slots()):
                    self._wait()
                    self._check_start()
                    self._show_loading()
                self._announce(ports.grpc)
                while True:
                    self._wait()
                    for slot in self._slots():
                        self._update(slot)
            except Stopped:
                return 0
            except StartupError as error:
                self._status.failed(error)
                raise
            finally:
                self._progress.clear()

    def _open_watch(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Opens the HTTP port with the metrics and health of the whole service."""
        calls = stack.enter_context(contextlib.closing(LoopCalls()))
        stack.callback(self._watch.close)  # before the calls close: its pages use them
        self._selector.register(calls, selectors.EVENT_READ, calls)
        self._watch.pages.begin(lambda answer: calls.put(lambda: answer(True)))
        watch(self._watch.board, self._counters, self._slots)
        pages = MergedPages(
            self._watch.pages.answer, folder, "frontend" if self._config.frontends else "engine"
        )
        self._watch.open(PORT if self._config.port else 0, pages.answer)

    def _slots(self) -> list[RestartSlot]:
        return self._launchers + self._engines + self._frontends + self._gateways

    def _children(self) -> list[Child]:
        return [slot.child for slot in self._slots() if slot.child is not None]

    def _standbys(self) -> list[Child]:
        return [child for slot in self._slots() for standbys in slot.standbys for child in standbys.children]

    def _start(self, folder: Path, ports: Ports) -> None:
        self._launchers = launcher_slots(self._config)
        engines = with_cache_key(self._config, folder)
        self._engines = engine_slots(engines, folder, share_cores(self._config))
        self._frontends = frontend_slots(self._config, folder, ports)
        self._gateways = gateway_slots(self._config, ports)
        for slot in self._slots():
            try:
                self._listen_to(slot.start())
            except OSError as error:
                raise _cannot_start(slot, error) from error

    def _listen_to(self, child: Child) -> None:
        self._selector.register(child.status, selectors.EVENT_READ, child)

    def _stop_listening_to(self, child: Child) -> None:
        with contextlib.suppress(KeyError):  # its pipe has ended already
            self._selector.unregister(child.status)

    def _wait(self) -> None:
        """Waits for a signal, an event of a child, or the next start or check that is due. Raises Stopped."""
        times = [slot.start_at - time.monotonic() for slot in self._slots() if slot.child is None]
        if self._config.hang_timeout:
            times.append(_CHECK_S)
        for key, _ in self._selector.select(max(min(times), 0.0) if times else None):
            if isinstance(key.data, Child) and not key.data.read_status():
                self._selector.unregister(key.fd)
            elif isinstance(key.data, LoopCalls):
                key.data.run()
        if self._signals.take() & STOPPING:
            raise Stopped
        awake_s = self._awake.passed(time.monotonic(), _CHECK_S)
        for child in self._children() + self._standbys() if self._config.hang_timeout else ():
            child.kill_if_hung(awake_s, self._config.hang_timeout)

    def _check_start(self) -> None:
        """Restarts children that were killed from outside. Raises the StartupError of one that failed, as
        another attempt would fail the same way."""
        for slot in self._slots():
            if slot.child is None:
                self._update(slot)
            elif slot.child.is_lost:
                reason = slot.child.cause_of_death()
                if not slot.child.was_killed_from_outside:
                    raise reason
                self._replace(slot, slot.child)

    def _update(self, slot: RestartSlot) -> None:
        """Restarts the slot's process if it is lost. Raises StartupError when it died too often."""
        child = slot.child
        self._update_standbys(slot)
        if child is None:
            if slot.start_at <= time.monotonic():
                self._restart(slot)
        elif child.is_lost:
            self._replace(slot, child)
        elif child.facts is not None and slot.down_since is not None:
            log.warning("the %s is back after %.1f s", slot.name, slot.recovered(time.monotonic()))

    def _update_standbys(self, slot: RestartSlot) -> None:
        """Drops standbys that died, and starts the next one that is due."""
        for standbys in slot.standbys:
            for lost in [each for each in standbys.children if each.is_lost]:
                log.warning("%s", lost.cause_of_death())
                self._stop_listening_to(lost)
                standbys.drop(lost, time.monotonic())
        due = slot.due_standbys(time.monotonic())
        if due is not None and (standby := due.start(time.monotonic())) is not None:
            self._listen_to(standby)

    def _restart(self, slot: RestartSlot) -> None:
        """Starts a process, later if the system cannot now: what killed its predecessor, such as a lack of
        memory, may keep it from starting for a while."""
        try:
            self._listen_to(slot.start())
        except OSError as error:
            pause = slot.postpone(time.monotonic())
            log.error("%s; trying again in %.1f s", _cannot_start(slot, error), pause)

    def _replace(self, slot: RestartSlot, child: Child) -> None:
        """Closes a lost process and schedules its successor. Raises StartupError if there shall be none."""
        reason, end = child.cause_of_death(), end_of(child)
        failed_to_start = child.facts is None and child.failure is not None and not child.failure.may_pass
        self._stop_listening_to(child)
        isolates = bool((child.facts or {}).get("suspects"))  # see engine_core/quarantine/blame.py
        explained = (isolates or child.was_killed) and not self._config.no_restart
        from_outside = child.was_killed_from_outside and not self._config.no_restart
        goes_on = slot.died(
            time.monotonic(), explained=explained, killed=child.was_killed, from_outside=from_outside
        )
        if failed_to_start or (not goes_on and self._config.no_restart):
            raise reason
        if not goes_on:
            raise _too_many_deaths(reason, self._config.max_deaths)
        self._counters.restarts[label(slot.name), end] += 1
        pause = slot.start_at - time.monotonic()
        when = f"in {pause:.1f} s" if pause > 0 else "at once"
        log.warning("%s; the %s starts again %s", reason, slot.name, when)

    def _show_loading(self) -> None:
        """Shows the progress of one engine core after another; frontends are ready long before."""
        loading = (slot.child for slot in self._engines if slot.child and slot.child.facts is None)
        child = next(loading, None)
        if child is not None and child.loading:
            self._status.loading(*child.loading)
            if not self._status.attached and not logs.writes_json():
                self._progress.show(*child.loading)
            child.loading = None

    def _announce(self, port: int) -> None:
        facts: Facts = {"address": f"{self._config.host}:{port}" if port else self._config.listen}
        facts["model"] = next(iter(self._config.served_model_name), default_served_name(self._config.model))
        for child in self._children():
            facts |= child.facts or {}
        if len(self._engines) > 1:
            facts["engines"] = len(self._engines)
        if self._config.num_ranks > 1:
            facts["ranks"] = self._config.num_ranks
        facts |= self._watch.facts
        self._progress.clear()  # standard output may be the same terminal
        self._status.ready(**facts)
        self._on_ready(facts)

    def _stop(self) -> None:
        """Stops gateway and frontends first, so that streams may end, then the cores. Late processes are
        killed."""
        grace = self._config.drain_delay + self._config.shutdown_grace + _EXTRA_GRACE_S
        slots = self._gateways + self._frontends
        frontends = [slot.child for slot in slots if slot.child is not None]
        cores = self._launchers + self._engines
        engines = [slot.child for slot in cores if slot.child is not None] + self._standbys()
        if self._end(frontends, grace):
            self._end(engines, _ENGINE_GRACE_S)
        for slot in self._slots():
            slot.close()

    def _end(self, children: list[Child], seconds: float) -> bool:
        """Sends SIGTERM and waits. Returns False when a second signal asks to stop at once."""
        for child in children:
            child.process.terminate()
        deadline = time.monotonic() + seconds
        while any(child.process.poll() is None for child in children):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if self._signals.wait(left) & STOPPING:
                return False
        return True


def _too_many_deaths(last: StartupError, limit: int) -> StartupError:
    """Returns the error of a service that ends because one process died too often."""
    why = f"{last.why}; within a minute that was death {limit}, where --max-deaths is {limit}"
    return StartupError(last.what, why, last.todo)


def _cannot_start(slot: RestartSlot, error: OSError) -> StartupError:
    """Returns the error for a process that the system does not let us start."""
    return StartupError(
        f"cannot start the {slot.name}",
        error.strerror or str(error),
        "look at this host's limits on processes, descriptors and memory",
    )
