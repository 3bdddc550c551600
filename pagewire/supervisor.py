"""`pagewire serve`: starts an engine core and its frontends, waits, and stops them together.

The engine core starts its worker itself. Children die with this process, by SIGKILL too (parent-
death signal). A child that dies takes the service down, with its reason as our last words.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from pagewire import flags, process, transport
from pagewire.config import EngineConfig, FrontendConfig, ServeConfig
from pagewire.errors import StartupError
from pagewire.models import default_served_name
from pagewire.ports import reserve_port
from pagewire.progress import LoadingLine
from pagewire.runtime_folder import runtime_folder
from pagewire.signals import STOPPING, Signals

Facts = dict[str, str | int | float]

_ENGINE_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL; an engine core has nothing to finish once its frontends are gone."""
_EXTRA_GRACE_S = 0.5
"""What a frontend gets beyond --shutdown-grace."""


class Stopped(Exception):
    """The user wants us to stop."""


class Child:
    """A process of ours, and what it has said on its status pipe."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.failure: StartupError | None = None
        self.loading: tuple[str, float] | None = None
        # A process group of its own: Ctrl-C reaches us alone, and SIGKILL reaches its children too.
        self.process: Popen[bytes]
        self.process, self.status = process.spawn(arguments, process_group=0)
        os.set_blocking(self.status, False)
        self._unread = b""

    def read_status(self) -> bool:
        """Takes in what the pipe holds. False at its end."""
        while True:
            try:
                data = os.read(self.status, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "ready":
            self.facts = event
        elif kind == "failed":
            self.failure = StartupError(event["what"], event["why"], event["todo"])
        else:
            self.loading = event["what"], event["fraction"]

    def cause_of_death(self) -> StartupError:
        """Why it is dead, as well as anybody can tell."""
        if self.failure is not None:
            return self.failure
        code = self.process.returncode
        why = f"it ended with exit code {code}"
        if code < 0:
            why = f"it was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", which is also what happens when memory runs out"
        return StartupError(f"the {self.name} is gone", why, "see the lines above, then start again")

    def close(self) -> None:
        """Ends it at once if it still lives, with all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.status)


class Supervisor:
    """One service: `run()` is its whole life."""

    def __init__(self, config: ServeConfig, on_ready: Callable[[Facts], None]) -> None:
        """on_ready: called once, with what the children found out about themselves."""
        self._config = config
        self._on_ready = on_ready
        self._status = process.Status()
        self._progress = LoadingLine(sys.stderr)
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._engine: Child | None = None
        self._frontends: list[Child] = []

    def run(self) -> int:
        """Returns 0 when a signal stopped us. Raises StartupError when a child failed or died."""
        flags.forget_environment(ServeConfig)
        with self._signals, contextlib.ExitStack() as stack:
            self._selector.register(self._signals, selectors.EVENT_READ)
            folder = stack.enter_context(runtime_folder())
            stack.callback(self._stop)
            try:
                port = self._reserve_port(stack)
                self._start(folder, port)
                while any(child.facts is None for child in self._children()):
                    self._wait()
                    self._show_loading()
                self._announce(port)
                while True:
                    self._wait()
            except Stopped:
                return 0
            except StartupError as error:
                self._status.failed(error)
                raise
            finally:
                self._progress.clear()

    def _children(self) -> list[Child]:
        return [*([self._engine] if self._engine else []), *self._frontends]

    def _reserve_port(self, stack: contextlib.ExitStack) -> int:
        """The port for the frontends; several share one, which we hold as long as we live."""
        if self._config.frontends == 1:
            return self._config.port
        reserved = stack.enter_context(reserve_port(self._config.host, self._config.port))
        return int(reserved.getsockname()[1])

    def _start(self, folder: Path, port: int) -> None:
        meeting = transport.frontends_address(folder)
        engine = replace(self._config, listen=meeting, listen_workers=transport.workers_address(folder))
        self._engine = Child("engine core", ["engine", *flags.to_arguments(engine, EngineConfig)])
        several = self._config.frontends > 1
        frontend = replace(self._config, port=port, engine=meeting, reuse_port=several)
        arguments = ["frontend", *flags.to_arguments(frontend, FrontendConfig)]
        for number in range(self._config.frontends):
            name = f"frontend {number + 1}" if several else "frontend"
            self._frontends.append(Child(name, arguments))
        for child in self._children():
            self._selector.register(child.status, selectors.EVENT_READ, child)

    def _wait(self) -> None:
        """Waits for a signal or a word of a child. Raises Stopped, or StartupError."""
        for key, _ in self._selector.select():
            if isinstance(key.data, Child) and not key.data.read_status():
                self._selector.unregister(key.fd)
        if self._signals.take() & STOPPING:
            raise Stopped
        for child in self._children():
            if child.failure is not None:
                raise child.failure
            if child.process.poll() is not None:
                child.read_status()  # its last words may have come after select()
                raise child.cause_of_death()

    def _show_loading(self) -> None:
        """The core's progress; a frontend is ready long before."""
        if self._engine and self._engine.loading:
            self._status.loading(*self._engine.loading)
            if not self._status.attached:
                self._progress.show(*self._engine.loading)
            self._engine.loading = None

    def _announce(self, port: int) -> None:
        facts: Facts = {"address": f"{self._config.host}:{port}"}
        facts["model"] = self._config.served_model_name or default_served_name(self._config.model)
        for child in self._children():
            facts |= child.facts or {}
        self._progress.clear()  # standard output may be the same terminal
        self._status.ready(**facts)
        self._on_ready(facts)

    def _stop(self) -> None:
        """Frontends first, so that streams may end; then the core. Whoever is late is killed."""
        grace = self._config.shutdown_grace + _EXTRA_GRACE_S
        if self._end(self._frontends, grace) and self._engine:
            self._end([self._engine], _ENGINE_GRACE_S)
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
