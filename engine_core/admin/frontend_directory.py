"""The frontends that are connected to the core, for operators: a list, and commands that the core passes on.

The core keeps nothing of a command: it goes to the frontend that is meant, its answer to the one that asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.context import CoreContext
from pagewire.internal.v1.engine_pb2 import (
    EngineMessage,
    FrontendCommand,
    FrontendList,
    FrontendReply,
    Hello,
    UtilityResult,
)
from pagewire.v1.admin_pb2 import FrontendStatus

MAX_FRONTENDS = 1024
"""Frontends that are listed; further ones are served and not listed."""
_MAX_TEXT = 256
"""Characters of names and addresses that are kept."""
_SILENCE_S = 3.0
"""A frontend presents itself twice a second. After so long without that it is not listed: it has died."""


@dataclass(slots=True)
class _Entry:
    status: FrontendStatus
    heard: float  # when it presented itself last


class FrontendDirectory:
    """Frontends by socket identity. All methods are O(number of frontends)."""

    def __init__(self, context: CoreContext) -> None:
        self._send, self._clock = context.send, context.clock
        self._entries: dict[bytes, _Entry] = {}

    @property
    def identities(self) -> list[bytes]:
        """Socket identities of all frontends."""
        return list(self._entries)

    def present(self, frontend: bytes, hello: Hello) -> bool:
        """Takes a heartbeat of a frontend. Returns whether it was in `identities` before."""
        entry = self._entries.get(frontend)
        if entry is not None:
            entry.heard = self._clock()
        elif len(self._entries) < MAX_FRONTENDS or self._forget_silent():
            status = FrontendStatus(
                instance_id=frontend.hex(), name=hello.name[:_MAX_TEXT], address=hello.address[:_MAX_TEXT]
            )
            self._entries[frontend] = _Entry(status, self._clock())
        return entry is not None

    def gone(self, frontend: bytes) -> None:
        """Forgets a frontend that cannot be reached."""
        self._entries.pop(frontend, None)

    def put_list(self, result: FrontendList) -> None:
        """Fills the list of frontends."""
        self._forget_silent()
        result.frontends.extend(entry.status for entry in self._entries.values())

    def command(self, asker: bytes, call_id: int, command: FrontendCommand) -> bool:
        """Passes a command on. Returns False when no frontend has its identity."""
        if command.frontend not in self._entries:
            return False
        command.asker, command.call_id = asker, call_id
        self._send(command.frontend, EngineMessage(frontend_command=command))
        return True

    def reply(self, frontend: bytes, reply: FrontendReply) -> None:
        """Passes a frontend's answer on to the frontend that asked."""
        if reply.asker in self._entries and reply.status.instance_id == frontend.hex():
            result = UtilityResult(call_id=reply.call_id, frontend_status=reply.status)
            self._send(reply.asker, EngineMessage(utility_result=result))

    def _forget_silent(self) -> bool:
        """Forgets frontends that have died; returns whether there were any."""
        until = self._clock() - _SILENCE_S
        silent = [frontend for frontend, entry in self._entries.items() if entry.heard < until]
        for frontend in silent:
            del self._entries[frontend]
        return bool(silent)
