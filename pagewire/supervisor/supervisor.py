"""`pagewire serve`: starts engine cores and frontends, starts again what died, and stops them together.

An engine core starts its worker itself, and dies with it. Children die with this process, by SIGKILL
too (parent-death signal). A child that fails while the service starts, or that dies again and again,
takes the service down, with its reason as our last words.
"""

import contextlib
import logging
import selectors
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pagewire import flags, logs
from pagewire.checkpoint_paths import default_served_name
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.liveness import AwakeTime
from pagewire.ipc.ports import reserve_port
from pagewire.ipc.runtime_folder import runtime_folder
from pagewire.supervisor.child import Child, Facts
from pagewire.supervisor.core_assignment import share_cores
from pagewire.supervisor.loop_calls import Calls
from pagewire.supervisor.metrics import Counters, watch, why_it_ended
from pagewire.supervisor.process_specs import engine_posts, frontend_posts
from pagewire.supervisor.progress import LoadingLine
from pagewire.supervisor.restart_slot import Post, label
from pagewire.supervisor.signals import STOPPING, Signals
from pagewire.telemetry.tree import TreePages
from pagewire.telemetry.watch import PORT, Watch

log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Between two looks at whether the children are alive."""
_ENGINE_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL; an engine core has nothing to finish once its frontends are gone."""
_EXTRA_GRACE_S = 1.0
"""What a frontend gets beyond --drain-delay and --shutdown-grace."""


class Stopped(Exception):
    """The user wants us to stop."""


class Supervisor:
    """One service: `run()` is its whole life."""

    def __init__(self, config: ServeConfig, on_ready: Callable[[Facts], None]) -> None:
        """on_ready: called once, with what the children found out about themselves."""
        self._config = config
        self._on_ready = on_ready
        self._status = process.Status()
        self._progress = LoadingLine(sys.stderr)
        self._selector = selectors.DefaultSelector()
        self._awake = AwakeTime(time.monotonic())
        self._signals = Signals()
        self._watch = Watch(config, "supervisor")
        self._counters = Counters()
        self._engines: list[Post] = []
        self._frontends: list[Post] = []

    def run(self) -> int:
        """Returns 0 when a signal stopped us. Raises StartupError when the service cannot go on."""
        flags.forget_environment(ServeConfig)
        with self._signals, contextlib.ExitStack() as stack:
            self._selector.register(self._signals, selectors.EVENT_READ)
            folder = stack.enter_context(runtime_folder())
            stack.callback(self._stop)
            try:
                self._open_watch(folder, stack)
                # Held as long as we live, so that nobody takes it while a frontend is away.
                reserved = stack.enter_context(reserve_port(self._config.host, self._config.port))
                port = int(reserved.getsockname()[1])
                self._start(folder, port)
                while any(child.facts is None for child in self._children()):
                    self._wait()
                    self._check_start()
                    self._show_loading()
                self._announce(port)
                while True:
                    self._wait()
                    for post in self._posts():
                        self._tend(post)
            except Stopped:
                return 0
            except StartupError as error:
                self._status.failed(error)
                raise
            finally:
                self._progress.clear()

    def _open_watch(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Our HTTP port, where all of the service can be seen."""
        calls = stack.enter_context(contextlib.closing(Calls()))
        stack.callback(self._watch.close)  # before that: it asks through them
        self._selector.register(calls, selectors.EVENT_READ, calls)
        self._watch.pages.begin(lambda answer: calls.put(lambda: answer(True)))
        watch(self._watch.board, self._counters, self._posts)
        pages = TreePages(self._watch.pages.answer, folder)
        self._watch.open(PORT if self._config.port else 0, pages.answer)

    def _posts(self) -> list[Post]:
        return self._engines + self._frontends

    def _children(self) -> list[Child]:
        return [post.child for post in self._posts() if post.child is not None]

    def _start(self, folder: Path, port: int) -> None:
        self._engines = engine_posts(self._config, folder, share_cores(self._config))
        self._frontends = frontend_posts(self._config, folder, port)
        for post in self._posts():
            self._fill(post)

    def _fill(self, post: Post) -> None:
        child = post.fill()
        self._selector.register(child.status, selectors.EVENT_READ, child)

    def _wait(self) -> None:
        """Waits for a signal, a word of a child, or the time to start one or to look. Raises Stopped."""
        times = [post.start_at - time.monotonic() for post in self._posts() if post.child is None]
        if self._config.hang_timeout:
            times.append(_LOOK_S)
        for key, _ in self._selector.select(max(min(times), 0.0) if times else None):
            if isinstance(key.data, Child) and not key.data.read_status():
                self._selector.unregister(key.fd)
            elif isinstance(key.data, Calls):
                key.data.run()
        if self._signals.take() & STOPPING:
            raise Stopped
        awake_s = self._awake.passed(time.monotonic(), _LOOK_S)
        for child in self._children() if self._config.hang_timeout else ():
            child.look(awake_s, self._config.hang_timeout)

    def _check_start(self) -> None:
        """Whoever fails in the beginning would fail again. Raises StartupError."""
        for child in self._children():
            if child.is_lost:
                raise child.cause_of_death()

    def _tend(self, post: Post) -> None:
        """Sees to it that somebody is there. Raises StartupError when that cannot be."""
        child = post.child
        if child is None:
            if post.start_at <= time.monotonic():
                self._fill(post)
        elif child.is_lost:
            self._replace(post, child)
        elif child.facts is not None and post.empty_since is not None:
            log.warning("the %s is back after %.1f s", post.name, post.taken(time.monotonic()))

    def _replace(self, post: Post, child: Child) -> None:
        """Its process is lost: another one shall start. Raises StartupError with the reason if not."""
        reason, word = child.cause_of_death(), why_it_ended(child)
        failed_to_start = child.facts is None and child.failure is not None and not child.failure.may_pass
        with contextlib.suppress(KeyError):  # where its pipe has ended already
            self._selector.unregister(child.status)
        hunts = bool((child.facts or {}).get("suspects"))  # see engine_core/quarantine/blame.py
        goes_on = post.empty(time.monotonic(), explained=hunts)
        if failed_to_start or (not goes_on and self._config.no_restart):
            raise reason
        if not goes_on:
            raise _too_many_deaths(reason, self._config.max_deaths)
        self._counters.restarts[label(post.name), word] += 1
        pause = post.start_at - time.monotonic()
        when = f"in {pause:.1f} s" if pause > 0 else "at once"
        log.warning("%s; the %s starts again %s", reason, post.name, when)

    def _show_loading(self) -> None:
        """The progress of one core after another; a frontend is ready long before."""
        loading = (post.child for post in self._engines if post.child and post.child.facts is None)
        child = next(loading, None)
        if child is not None and child.loading:
            self._status.loading(*child.loading)
            if not self._status.attached and not logs.writes_json():
                self._progress.show(*child.loading)
            child.loading = None

    def _announce(self, port: int) -> None:
        facts: Facts = {"address": f"{self._config.host}:{port}"}
        facts["model"] = self._config.served_model_name or default_served_name(self._config.model)
        for child in self._children():
            facts |= child.facts or {}
        if len(self._engines) > 1:
            facts["engines"] = len(self._engines)
        facts |= self._watch.facts
        self._progress.clear()  # standard output may be the same terminal
        self._status.ready(**facts)
        self._on_ready(facts)

    def _stop(self) -> None:
        """Frontends first, so that streams may end; then the core. Whoever is late is killed."""
        grace = self._config.drain_delay + self._config.shutdown_grace + _EXTRA_GRACE_S
        frontends = [post.child for post in self._frontends if post.child is not None]
        if self._end(frontends, grace):
            self._end([child for child in self._children() if child not in frontends], _ENGINE_GRACE_S)
        for child in self._children():
            child.close()

    def _end(self, children: list[Child], seconds: float) -> bool:
        """SIGTERM, then waiting. False when the user loses patience."""
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
    """What to say when nobody takes a place again."""
    why = f"{last.why}; within a minute that was death {limit}, where --max-deaths is {limit}"
    return StartupError(last.what, why, last.todo)
