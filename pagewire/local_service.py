"""A private service: `pagewire serve` as a child of this process, on a free port."""

import atexit
import json
import os
import threading
import weakref
from collections.abc import Callable
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any, Self

from pagewire import flags
from pagewire.config import ServeConfig
from pagewire.errors import StartupError
from pagewire.host import spawn as process

_STOP_S = 10.0
"""Seconds until SIGKILL; a supervisor ends its children within about three seconds."""

_running: "weakref.WeakSet[Service]" = weakref.WeakSet()


class Service:
    """Starts when made, and stops with close(), at the end of a with statement, or with this process.

    Raises StartupError with the reason of the process that could not start. A process forked from this one
    does not own the service, and cannot stop it.
    """

    def __init__(self, config: ServeConfig, on_loading: Callable[[str, float], None] | None = None) -> None:
        """on_loading: called with the item that is being loaded and its progress, 0 to 1."""
        self.facts: dict[str, Any] = {}
        self._closed = False
        self._owner = os.getpid()
        self._process, status, self._ended = _spawn_in_thread(
            ["serve", *flags.to_arguments(config, ServeConfig)]
        )
        _running.add(self)
        try:
            with os.fdopen(status, encoding="utf-8") as events:
                self._wait_until_ready(events, on_loading)
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self, events: Any, on_loading: Callable[[str, float], None] | None) -> None:
        for line in events:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "ready":
                self.facts = event
                return
            if kind == "failed":
                raise StartupError(event["what"], event["why"], event["todo"])
            if on_loading:
                on_loading(event["what"], event["fraction"])
        raise StartupError(
            "the service ended while it was starting",
            f"exit code {self._process.wait()}",
            "see the lines above",
        )

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return str(self.facts["address"])

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """False once the supervisor has ended."""
        return not self._ended.is_set()

    def close(self) -> None:
        """Stops all processes of the service. Idempotent; does nothing in a forked process."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except TimeoutExpired:
            self._process.kill()  # its children go with it
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


def _spawn_in_thread(arguments: list[str]) -> tuple["Popen[bytes]", int, threading.Event]:
    """Calls process.spawn() in a thread that lasts as long as the child, which would die with a shorter one.

    Returns process, status pipe, and an event that is set when the child has ended.
    """
    spawned: list[tuple[Popen[bytes], int]] = []
    failed: list[BaseException] = []
    done, ended = threading.Event(), threading.Event()

    def keep() -> None:
        try:
            spawned.append(process.spawn(arguments, from_birth=False, stdout=DEVNULL, process_group=0))
        except BaseException as error:
            failed.append(error)
            done.set()
            return
        done.set()
        spawned[0][0].wait()
        ended.set()

    threading.Thread(target=keep, name="pagewire-service", daemon=True).start()
    done.wait()
    if failed:
        raise failed[0]
    return *spawned[0], ended


@atexit.register
def _close_all() -> None:
    for service in list(_running):
        service.close()
