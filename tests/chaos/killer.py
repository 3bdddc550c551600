"""A plan of kills from a seed (which process, in which order, how soon after one another), and its
execution."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.history import Writer
from tests.chaos.load import Load, Stuck
from tests.e2e import services

TOKENS_BETWEEN = 600
"""At most so many tokens, of all streams, come between the end of a pause and the next burst."""
_SUCCESSION = 0.2
"""Share of bursts that are more than one strike."""
_MAX_STRIKES = 3
"""... and how many they may be: a request that was lost four times without a token is given up."""
_MAX_FRONTENDS = 2
"""... of these: see load.MAX_WHOLE_ATTEMPTS."""
_MAX_DELAY_S = 0.6
"""Between two strikes of a burst: about what a core and its worker need to come back."""
_POLL_S = 0.01
_PATIENCE_S = 300.0
STANDBY, ALL = "standby", "all"
"""Victims that are no command: a standby of any command; all processes below the supervisor."""
_STOPPED_S = 15.0
"""Seconds from SIGSTOP to SIGCONT."""


@dataclass(frozen=True)
class Blow:
    """A strike that is planned."""

    victim: str
    """Command of the process: engine, worker or frontend; or STANDBY or ALL."""
    delay: float
    """Seconds after the one before it in the same burst."""
    signal: str = "SIGKILL"


Burst = list[Blow]


def plan(counts: Mapping[str, int], seed: int, gaps: tuple[float, float] | None = None) -> list[Burst]:
    """So many strikes at each victim, in bursts; the streams move on between two of these.

    counts: by victim; "engine:SIGSTOP" names another signal than SIGKILL. gaps: each strike is a burst, which
    comes so many seconds after the last one, at least and at most.
    """
    dice = random.Random(seed)
    names = [name for name, count in sorted(counts.items()) for _ in range(count)]
    dice.shuffle(names)
    if gaps is not None:
        return [[_blow(name, dice.uniform(*gaps))] for name in names]
    bursts: list[Burst] = []
    while names:
        size = dice.randint(2, _MAX_STRIKES) if dice.random() < _SUCCESSION else 1
        chosen = names[:size]
        if sum(name.startswith("frontend") for name in chosen) > _MAX_FRONTENDS:
            del chosen[_MAX_FRONTENDS:]
        del names[: len(chosen)]
        bursts.append([_blow(name, dice.uniform(0.0, _MAX_DELAY_S)) for name in chosen])
    return bursts


def _blow(name: str, delay: float) -> Blow:
    victim, _, sent = name.partition(":")
    return Blow(victim, delay, sent or "SIGKILL")


@dataclass(frozen=True)
class Killer:
    """Strikes at the processes of one service."""

    load: Load
    supervisor: int
    """Its process id."""
    writer: Writer
    dice: random.Random

    async def execute(self, bursts: Sequence[Burst], *, timed: bool) -> None:
        """Strikes all of these, each burst at a random moment after all streams have moved on, or, timed,
        whatever the streams do. Raises Stuck."""
        for number, burst in enumerate(bursts):
            if not timed:
                await self.load.moved_on(self.dice.randrange(TOKENS_BETWEEN))
            for place, blow in enumerate(burst):
                if place or timed:
                    await asyncio.sleep(blow.delay)
                await self._strike(blow, number)
        await self.load.moved_on(0)
        self.writer.calm()

    async def _strike(self, blow: Blow, burst: int) -> None:
        """Waits until the process to kill exists, and kills it."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            found, is_all = self._find(blow.victim), blow.victim == ALL
            struck = (each for each in found if _send(blow.signal, each[2]))
            for stands_by, command, _ in list(struck) if is_all else struck:
                victim, stands_by = (ALL, False) if is_all else (command, stands_by)
                self.writer.strike(burst, victim, blow.signal, standby=stands_by)
                return
            await asyncio.sleep(_POLL_S)
        raise Stuck(f"there is no {blow.victim}")

    def _find(self, victim: str) -> list[tuple[bool, str, int]]:
        """Returns what may be struck, in a random order, in which half the time those that serve come first:
        whether each is a standby, its command and process id."""
        processes = services.processes(self.supervisor)
        commands = processes if victim in (STANDBY, ALL) else [victim]
        found = [
            (services.stands_by(pid), command, pid)
            for command in commands
            for pid in processes.get(command, [])
        ]
        self.dice.shuffle(found)
        if victim == STANDBY:
            return [each for each in found if each[0]]
        return sorted(found, key=lambda each: each[0]) if self.dice.random() < 0.5 else found


def _send(name: str, pid: int) -> bool:
    """Sends a signal, and SIGCONT to a process that is still stopped after a while. Returns False when there
    is no such process."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            signal.pidfd_send_signal(descriptor, getattr(signal, name))
        except ProcessLookupError:
            return False
        if name == "SIGSTOP":
            asyncio.get_running_loop().call_later(_STOPPED_S, _continue, descriptor, stack.pop_all())
        return True


def _continue(descriptor: int, stack: contextlib.ExitStack) -> None:
    with stack, contextlib.suppress(ProcessLookupError):  # it was found, and killed
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
