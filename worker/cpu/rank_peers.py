"""What a rank needs of the others, whatever connects them, and the facts in which all must be alike."""

import ctypes
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from kernels.cpu.runtime.rank_link import RankLink
from pagewire.errors import StartupError
from worker.loop import RankGone

JOIN_S = 120.0
"""Seconds that a rank waits for others to begin to load."""
DEADLINE_S = RankLink.DEADLINE_S
"""Seconds that a rank waits in one exchange, beyond the limit of the engine core's hang detection: a peer may
be loading a large model."""
CANNOT_JOIN = "cannot join the group of ranks"
ABSENT = "the log says why a rank has not come; then start again"
_MOST_FACTS = 4096
_REPORT_S = 1.0


class Exchange(ABC):
    """How this rank exchanges bytes with all others of a worker, or with some of them."""

    link: RankLink | None = None
    """By which programs exchange; None: they cannot."""

    @abstractmethod
    def exchange(self, source: int, count: int, target: int) -> None:
        """Copies [count] bytes of each rank to a target [ranks, count]. Addresses. All ranks call it with the
        same count. Raises RankGone."""


class RankPeers(Exchange):
    """The other ranks of a worker, as this one sees them. For one thread."""

    rank: int
    size: int
    on_wait: Callable[[str, float], None] | None
    """Called once a second, with text and a fraction that changes, while a rank is waited for; None: nothing
    needs to know."""
    parts: Mapping[tuple[int, ...], Exchange]
    """Exchanges of some ranks, among them this one, by their numbers."""

    _since = _reported = 0.0
    """When this rank began to wait, and last said so; 0: with the next look."""

    @abstractmethod
    def _check_peers(self) -> None:
        """Raises RankGone where it is known that no other rank will come."""

    def check(self) -> None:
        """Raises RankGone where another rank has ended, or has given up."""
        self._check_peers()

    def _look(self, what: str, limit_s: float | None = None) -> None:
        """Raises RankGone where something is waited for in vain, or has been for too long. what: that is.
        limit_s: None: DEADLINE_S."""
        self._check_peers()
        limit_s = DEADLINE_S if limit_s is None else limit_s
        now = time.monotonic()
        if not self._since:
            self._since = self._reported = now
        if now - self._since > limit_s:
            raise self._late(what, limit_s)
        if self.on_wait is not None and now - self._reported >= _REPORT_S:
            self._reported = now
            self.on_wait(what, (now - self._since) / limit_s)

    def _late(self, what: str, limit_s: float) -> RankGone:
        return RankGone(f"rank {self.rank} of the worker has waited {limit_s:.0f} s for {what}")

    def announce_plan(self) -> None:
        """Says that this rank has one more plan, in the order in which it begins them."""

    @abstractmethod
    def begin_step(self, *, micro_batch: bool = False) -> None:
        """Returns when this rank may begin the next step. Raises EngineGone where it may not, because the
        core is lost; RankGone. micro_batch: see StepPlan."""

    @abstractmethod
    def leave_core(self) -> None:
        """Returns when all ranks have left a core that is gone. Raises RankGone."""

    @abstractmethod
    def abort(self) -> None:
        """Ends the group: this rank cannot continue."""

    def of_first(self, value: int) -> int:
        """Returns the value of rank 0, on every rank. Raises RankGone."""
        own, found = (ctypes.c_int64 * 1)(value), (ctypes.c_int64 * self.size)()
        self.exchange(ctypes.addressof(own), ctypes.sizeof(own), ctypes.addressof(found))
        return found[0]

    def check_equal(self, facts: Mapping[str, str], host: str = "") -> None:
        """Raises StartupError, on all ranks, unless all have the same facts; the first that differs is named,
        with its host. host: of this rank, where the group has several."""
        own = json.dumps([host, dict(facts)]).encode().ljust(_MOST_FACTS)
        assert len(own) == _MOST_FACTS
        source, target = bytearray(own), bytearray(_MOST_FACTS * self.size)
        self.exchange(_address(source), _MOST_FACTS, _address(target))
        of_ranks = [json.loads(target[at : at + _MOST_FACTS]) for at in range(0, len(target), _MOST_FACTS)]
        names = [f"rank {rank}" + (f" on {at}" if at else "") for rank, (at, _) in enumerate(of_ranks)]
        first = of_ranks[0][1]
        for name, (_, others) in zip(names, of_ranks, strict=True):
            for fact, value in first.items():
                if others.get(fact) != value:
                    raise StartupError(
                        "the ranks of the worker disagree",
                        f"{fact}: {names[0]} has {value}, {name} has {others.get(fact)}",
                        "start all ranks with the same installation, on the same files",
                    )


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
