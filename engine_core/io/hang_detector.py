"""Whether the worker hangs: it owes a result, or has to load, and nothing comes of it.

No clock and no process in here: whoever waits for the worker looks a few times in a second, and says how
long it was awake since the last look, and what the kernel says of the worker (see pagewire.host.liveness).

    limit    = max(patience, 20 * expected)
    expected = the longest of the last small steps + tokens of the plan * seconds per token of the large ones

A worker that has gone past its limit hangs if it does not compute: it is stopped, or waits for what never
comes. One that does compute may have been given more than was ever measured, such as a first long prompt
on a slow machine, or compile something; it gets five times the limit.
"""

from collections import deque

from pagewire.host.liveness import Liveness
from pagewire.host.proc_stat import Vitals

LOADING_PATIENCE_S = 30.0
"""For a worker that loads and neither computes, nor reads a disk, nor says a word."""
_SLOWNESS = 20.0
"""How much longer than expected a step may take: ten times is a slow machine."""
_COMPUTING = 5.0
"""By which the limit is longer for a worker that computes."""
_QUIET_S = 1.0
"""Without having computed, until it counts as not computing."""
_MANY_TOKENS = 64
"""From here on a step takes its time for its tokens; below, for reading the weights, say."""
_KEPT = 0.99
"""Of what the slowest step has taught, with each further one."""


class WorkerWatch:
    """What the worker owes, and for how long. Times in seconds."""

    def __init__(self, patience: float) -> None:
        """patience: the least limit; 0: nobody is ever said to hang."""
        self._patience = patience
        self._loading: Liveness | None = Liveness()
        self._under_way: deque[int] = deque()  # tokens of the plans, oldest first
        self._small_step = 0.0
        self._per_token = self._least_per_token = 0.0
        self._taken = self._quiet = self._stopped = 0.0
        self._vitals: Vitals | None = None

    def spoke(self) -> None:
        """A message came while it loads."""
        if self._loading is not None:
            self._loading.heard()

    def loaded(self, seconds_per_token: float) -> None:
        """It is ready. seconds_per_token: of a prompt, as it has measured that itself; 0: it has not."""
        self._loading = None
        self._least_per_token = seconds_per_token

    def sent(self, num_tokens: int) -> None:
        """A plan was sent, behind those that are under way."""
        self._under_way.append(num_tokens)

    def ended(self, seconds: float) -> None:
        """The oldest plan was answered; so long it took."""
        num_tokens = self._under_way.popleft()
        if num_tokens >= _MANY_TOKENS:
            self._per_token = max(seconds / num_tokens, _KEPT * self._per_token)
        else:
            self._small_step = max(seconds, _KEPT * self._small_step)
        self._taken = self._quiet = 0.0

    @property
    def limit(self) -> float:
        """Of the oldest plan under way."""
        per_token = max(self._per_token, self._least_per_token)
        return max(self._patience, _SLOWNESS * (self._small_step + self._under_way[0] * per_token))

    def look(self, awake_s: float, vitals: Vitals | None) -> str:
        """Why the worker counts as hung; "": it does not.

        vitals: None for one that somebody else has started, perhaps on another machine.
        """
        before, self._vitals = self._vitals, vitals
        if not self._patience:
            return ""
        if self._loading is not None:
            hangs = self._loading.hangs(awake_s, vitals, LOADING_PATIENCE_S, starts=True)
            return "it neither loads nor says a word" if hangs and vitals is not None else ""
        computes = False
        if vitals is not None and before is not None:
            computes = vitals.computes_since(before, awake_s)
            awake_s = max(0.0, awake_s - (vitals.starved_s - before.starved_s))
        if self._under_way:
            return self._look_at_step(awake_s, computes)
        is_stopped = vitals is not None and vitals.state == "T"
        self._stopped = self._stopped + awake_s if is_stopped else 0.0
        return "it was stopped" if self._stopped >= self._patience else ""

    def _look_at_step(self, awake_s: float, computes: bool) -> str:
        self._taken += awake_s
        self._quiet = 0.0 if computes else self._quiet + awake_s
        limit = self.limit if self._quiet >= _QUIET_S else _COMPUTING * self.limit
        if self._taken < limit:
            return ""
        return f"a step has taken {self._taken:.1f} s, and it should have been over long ago"
