"""One rank of a worker group, as the engine core sees it, and whether it hangs.

A rank that owes a result, or has to load, and makes no progress, hangs:

    limit    = max(patience, 20 * expected)
    expected = the longest of the last small steps + tokens of the plan * seconds per token of the large ones
             + bytes of media that it encodes * seconds per byte of those that were encoded

A rank that exceeds its limit hangs if it does not compute: it is stopped, or waits for something that never
comes. A rank that does compute may have been given more than was ever measured, such as a first long prompt
on a slow machine, or may compile something: it gets five times the limit. How long an encoder takes is not
known before it has encoded something: such a step may take as long as the rank computes, or ten minutes on
another host, whose processes are not seen. Attention grows with
the square of an image, so the seconds per byte of one that is n times as large as those that were measured
count n times.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from engine_core.io.worker_process import SEE_ABOVE, WorkerDied, WorkerProcess
from pagewire.host.liveness import Liveness
from pagewire.host.proc_stat import Vitals, read_vitals
from pagewire.host.stack_dump import log_stacks
from pagewire.internal.v1.worker_pb2 import Failed, WorkerHello, WorkerMessage

LOADING_PATIENCE_S = 30.0
"""For a rank that loads and neither computes, nor reads a disk, nor sends a message."""
_SLOWNESS = 20.0
"""How much longer than expected a step may take: ten times is a slow machine."""
_COMPUTING = 5.0
_FIRST_ENCODING_S = 600.0
"""Factor of the limit for a rank that computes."""
_QUIET_S = 1.0
"""Seconds without computing after which a rank counts as not computing."""
_MANY_TOKENS = 64
"""From here on the duration of a step depends on its tokens; below, on reading the weights."""
_KEPT = 0.99
"""Share of the slowest step that is remembered after each further one."""


class HangDetector:
    """What one rank owes, and for how long. Times in seconds.

    Knows no clock and no process: the caller looks a few times a second, and passes how long it was awake
    since its last look and what the kernel reports about the process (see pagewire.host.liveness).
    """

    def __init__(self, patience: float) -> None:
        """patience: the smallest limit; 0 turns the detector off."""
        self._patience = patience
        self._loading: Liveness | None = Liveness()
        self._in_flight = deque[tuple[int, int, int]]()
        """Of plans, oldest first: tokens, bytes of media to encode, and those of the largest item."""
        self._small_step = 0.0
        self._per_token = self._least_per_token = 0.0
        self._per_byte = 0.0
        self._largest_encoded = 0  # bytes of an item
        self._taken = self._quiet = self._stopped = 0.0
        self._vitals: Vitals | None = None

    def heard(self) -> None:
        """Records a message from the rank."""
        if self._loading is not None:
            self._loading.heard()

    def loaded(self, seconds_per_token: float) -> None:
        """Records that the rank is ready. seconds_per_token: of a prompt, as measured; 0: not measured."""
        self._loading = None
        self._in_flight.clear()
        self._taken = self._quiet = 0.0
        self._least_per_token = seconds_per_token

    def kept(self) -> None:
        """Records that the rank has loaded for an earlier core, and owes this one an answer."""
        self._loading = None
        self._in_flight.append((0, 0, 0))

    def sent(self, num_tokens: int, media: Sequence[int] = ()) -> None:
        """Records a plan that was sent, behind those in flight. media: bytes of each item to encode."""
        self._in_flight.append((num_tokens, sum(media), max(media, default=0)))

    def ended(self, seconds: float, encoding: float = 0.0) -> None:
        """Records the result of the oldest plan, which took so many seconds. encoding: those for media."""
        num_tokens, media, largest = self._in_flight.popleft()
        if media and encoding:  # else memory did not suffice
            self._per_byte = max(encoding / media, _KEPT * self._per_byte)
            self._largest_encoded = max(largest, self._largest_encoded)
        seconds -= encoding
        if num_tokens >= _MANY_TOKENS:
            self._per_token = max(seconds / num_tokens, _KEPT * self._per_token)
        else:
            self._small_step = max(seconds, _KEPT * self._small_step)
        self._taken = self._quiet = 0.0

    @property
    def loads(self) -> bool:
        """Whether the rank is not ready yet."""
        return self._loading is not None

    @property
    def owes_step(self) -> bool:
        """Whether a plan is without its result."""
        return self._loading is None and bool(self._in_flight)

    @property
    def quiet_s(self) -> float:
        """Seconds since it has computed, of a rank that owes a step."""
        return self._quiet

    @property
    def limit(self) -> float:
        """Seconds that the oldest plan in flight may take."""
        num_tokens, media, largest = self._in_flight[0]
        expected = self._small_step + num_tokens * max(self._per_token, self._least_per_token)
        expected += media * self._per_byte * max(1.0, largest / max(1, self._largest_encoded))
        return max(self._patience, _SLOWNESS * expected)

    def look(self, awake_s: float, vitals: Vitals | None) -> str:
        """Returns why the rank counts as hung; "" if it does not.

        awake_s: seconds since the last call. vitals: None for a process that others have started, perhaps on
        another machine.
        """
        before, self._vitals = self._vitals, vitals
        if not self._patience:
            return ""
        is_stopped = vitals is not None and vitals.state == "T"
        self._stopped = self._stopped + awake_s if is_stopped else 0.0
        if self._loading is not None:
            if self._stopped >= self._patience:
                return "it was stopped"
            hangs = self._loading.hangs(awake_s, vitals, LOADING_PATIENCE_S, starts=True)
            return "it neither loads nor sends a message" if hangs and vitals is not None else ""
        computes = False
        if vitals is not None and before is not None:
            computes = vitals.computes_since(before, awake_s)
            awake_s = max(0.0, awake_s - (vitals.starved_s - before.starved_s))
        if self._in_flight:
            return self._look_at_step(awake_s, vitals, computes=computes)
        return "it was stopped" if self._stopped >= self._patience else ""

    def _look_at_step(self, awake_s: float, vitals: Vitals | None, *, computes: bool) -> str:
        self._taken += awake_s
        self._quiet = 0.0 if computes else self._quiet + awake_s
        limit = self.limit if self._quiet >= _QUIET_S else _COMPUTING * self.limit
        is_unknown = self._in_flight[0][1] > 0 and not self._per_byte
        if is_unknown and vitals is None:  # whether it computes is not known, either
            limit = max(limit, _FIRST_ENCODING_S)
        if (self._quiet if is_unknown else self._taken) < limit:
            return ""
        return f"a step has taken {self._taken:.1f} s, and it should have been over long ago"


def find_hung(ranks: Sequence["Rank"], reasons: Mapping["Rank", str]) -> "Rank | None":
    """Returns the rank that is to blame, of those that have a reason to count as hung; None: no rank hangs.

    In a step, ranks wait for one another. So while one of them may still compute it, the others have a reason
    to wait; and of several that exceed their limits, one that was stopped, or else one that computes, is what
    the others wait for.
    """
    silent = [rank for rank in ranks if not rank.messages]
    hung = [rank for rank in silent if rank in reasons]
    stopped = [rank for rank in hung if rank.is_stopped]
    if not stopped and any(rank.hang_detector.owes_step and rank not in reasons for rank in silent):
        return None
    return min(stopped or hung, key=lambda rank: rank.hang_detector.quiet_s, default=None)


class Rank:
    """One process of a worker: its address, its unread messages, and whether it hangs."""

    def __init__(self, number: int, size: int, child: WorkerProcess | None, hang_timeout: float) -> None:
        """size: ranks of the group. child: None for a process that the engine core has not started."""
        self.number = number
        self.child = child
        self.peer: bytes | None = None
        """Identity of its socket, from its WorkerHello on."""
        self.connection = -1
        """Descriptor of its connection, from then on."""
        self.host = ""
        """Name of its host, in a group over several."""
        self.messages: deque[WorkerMessage] = deque()
        """Received and not yet taken, oldest first."""
        self.hang_detector = HangDetector(hang_timeout)
        self.is_stopped = False
        """Whether its process was stopped at the last look()."""
        self.is_alone = size == 1
        self.name = "the worker" if self.is_alone else f"rank {number} of the worker"

    def is_greeted_by(self, hello: WorkerHello) -> bool:
        """Returns whether a WorkerHello is from this rank, which has none yet."""
        if self.peer is not None:
            return False
        return hello.rank == self.number and (self.child is None or hello.pid == self.child.pid)

    def greet(self, hello: WorkerHello, peer: bytes, connection: int) -> None:
        """Records the process that is this rank. peer: identity of its socket. connection: descriptor of its
        connection."""
        self.peer, self.connection, self.host = peer, connection, hello.host
        if hello.host:
            self.name = f"rank {self.number} of the worker (on {hello.host})"

    def failure(self, failed: Failed) -> WorkerDied:
        """Returns the error that it has sent; one of several ranks is named."""
        error = WorkerDied.reported(failed)
        if self.is_alone:
            return error
        pid = "" if self.child is None else f" (pid {self.child.pid})"
        return WorkerDied(error.what, f"{self.name}{pid}: {error.why}", error.todo, may_pass=error.may_pass)

    def check_alive(self, readable: Collection[int]) -> None:
        """Raises WorkerDied if its process has ended. readable: descriptors, among them that of its end."""
        if self.child is not None and self.child.pidfd in readable:
            raise self.death("")

    def look(self, awake_s: float) -> str:
        """Returns why it counts as hung; "" if it does not. awake_s: see HangDetector.look()."""
        vitals = read_vitals(self.child.pid) if self.child is not None else None
        self.is_stopped = vitals is not None and vitals.state == "T"
        return self.hang_detector.look(awake_s, vitals)

    def hang(self, why: str) -> WorkerDied:
        """Kills the process, which hangs, and returns the error."""
        name = self.name
        if self.child is not None:
            log_stacks(name.removeprefix("the "), self.child.pid)
            self.child.kill()
            name, why = f"{name} (pid {self.child.pid})", why + "; it was killed"
        todo = "see the lines above; if it was only slow, raise --hang-timeout"
        return WorkerDied(f"{name} hangs", why, todo)

    def death(self, why: str) -> WorkerDied:
        """Returns the error for a process that has ended. why: what is known from outside."""
        if self.child is None:
            may_pass = bool(self.host) and self.hang_detector.loads  # its host comes back, with another rank
            return WorkerDied(f"{self.name} is gone", why, SEE_ABOVE, may_pass=may_pass)
        return self.child.cause_of_death(self.name, why)
