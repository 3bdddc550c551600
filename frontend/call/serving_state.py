"""The frontend's serving state, and a way to wait for its changes."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from frontend.errors import Draining
from pagewire.v1 import admin_pb2

T = TypeVar("T")

log = logging.getLogger(__name__)

STARTING = admin_pb2.SERVER_STATE_STARTING
SERVING = admin_pb2.SERVER_STATE_SERVING
DRAINING = admin_pb2.SERVER_STATE_DRAINING
FAILED = admin_pb2.SERVER_STATE_FAILED


class ServingState:
    """The state that health checks and GetServerInfo report. Set by the engine client and by
    frontend/rpc/shutdown.py."""

    def __init__(self) -> None:
        self._engine = STARTING
        self._drains = False  # health says NOT_SERVING, requests are still accepted
        self._refuses = False  # requests are refused
        self._closes = False  # the server is about to stop, which cannot be undone
        self._changed = asyncio.Event()

    @property
    def state(self) -> "admin_pb2.ServerState":
        return DRAINING if self._drains else self._engine

    @property
    def serves(self) -> bool:
        """True when health checks pass, so that load balancers send requests here."""
        return self.state == SERVING

    @property
    def engine(self) -> "admin_pb2.ServerState":
        """STARTING, SERVING or FAILED."""
        return self._engine

    @property
    def closes(self) -> bool:
        """True when calls without an end of their own should end now."""
        return self._closes

    @property
    def leaves(self) -> bool:
        """True when clients that stay connected should look for another server."""
        return self._refuses or self._closes

    def require_open(self) -> None:
        """Raises Draining when new requests are refused."""
        if self._refuses:
            raise Draining

    def set_engine(self, state: "admin_pb2.ServerState") -> None:
        """Sets STARTING, SERVING or FAILED."""
        if state != self._engine:
            self._engine = state
            log.info("engine: %s", admin_pb2.ServerState.Name(state).removeprefix("SERVER_STATE_").lower())
            self._notify()

    def drain(self) -> None:
        """Makes health checks fail; requests that still arrive are served."""
        self._drains = True
        self._notify()

    def refuse(self) -> None:
        """Refuses all new requests from now on."""
        self._refuses = True
        self._notify()

    def resume(self) -> None:
        """Undoes drain() and refuse()."""
        self._drains = self._refuses = False
        self._notify()

    def close(self) -> None:
        """Marks the shutdown, as the last change that waiters see."""
        self._drains = self._closes = True
        self._notify()

    def changed(self) -> Coroutine[Any, Any, object]:
        """Returns a coroutine that waits for the next change after this call, also if a task runs it later.
        There must be no await between reading the state and this call."""
        return self._changed.wait()

    async def unless_closed(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Returns the result of a coroutine, which is cancelled when the shutdown begins first. Raises
        Draining then."""
        task, change = asyncio.create_task(waiting), None
        try:
            while not self._closes:
                change = asyncio.create_task(self.changed())
                await asyncio.wait((task, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if task.done():
                    return task.result()
            raise Draining
        finally:
            task.cancel()
            if change is not None:
                change.cancel()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
