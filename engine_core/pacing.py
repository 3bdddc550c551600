"""When to plan the next step while one is running: as late as the device allows.

    device   |------------- k -------------|------------- k+1 -----
    core     ^ result of k-1     ^ plan     ^ result of k
             |<----- delay ----->|<- margin ->|

Whoever arrives before the plan is made is in step k+1; whoever comes after it waits for one step more.
Planned at once, each step would close its doors while the one before it has hardly begun. So we wait; but a
device that waits for a plan costs everybody more than a late arrival. The margin is generous, and grows
each time that the device did wait: on a busy machine, plans are made early.

A device that computes in the worker's own thread (a CPU) is never without a gap: it hands over a result and
reads the next plan between two steps. The shortest gap is its own; what is longer was waiting.
"""

from collections import deque
from math import inf

from engine_core.step.plan import Plan
from engine_core.step.result import Result

_MOST_PATIENCE = 0.75
"""Share of a step to wait for. Steps of equal size differ: contexts grow."""
_RECOVERY = 0.002
"""What patience gains with each step that began in time; where one did not, it halves."""
_TOLERANCE = 0.02
"""Share of a step that the device may idle after it, beyond its own gap, before we call it waiting."""
_GAP_GROWTH = 1.01
"""By which the device's own gap, the shortest of the last ones, is forgotten with each step."""
_PLANNING_FACTOR = 2.0
"""How much longer it may take to plan a step than the slowest of the last ones."""
_PLANNING_DECAY = 0.9


class Pace:
    """Knows how long steps take, and how long it takes to plan them. Times in seconds, on one clock."""

    def __init__(self) -> None:
        self.patience = _MOST_PATIENCE
        # Tokens of a plan, and whether it was sent behind another.
        self._under_way: deque[tuple[int, bool]] = deque()
        self._began = 0.0  # the oldest of them
        self._num_tokens, self._duration = 1, 0.0  # of the last step that has ended
        self._ended_ns = 0  # on the device's clock
        self._own_gap_ns = inf  # of the device, between two steps
        self._planning = 0.0  # the slowest of the last plans; older ones count less

    def sent(self, plan: Plan, began: float, now: float) -> None:
        """A plan was sent just now; to make it was begun before."""
        self._planning = max(now - began, _PLANNING_DECAY * self._planning)
        if not self._under_way:
            self._began = now
        self._under_way.append((sum(plan.counts), bool(self._under_way)))

    def ended(self, result: Result, now: float) -> None:
        """The result of the oldest plan has come; the next one, if there is one, is running."""
        self._num_tokens, is_behind = self._under_way.popleft()
        self._began, self._duration = now, result.duration_us / 1e6
        if is_behind and self._waited_ns(result) > _TOLERANCE * 1000 * result.duration_us:
            self.patience /= 2
        else:
            self.patience = min(_MOST_PATIENCE, self.patience + _RECOVERY)
        self._ended_ns = result.started_ns + 1000 * result.duration_us

    def _waited_ns(self, result: Result) -> float:
        """How long the device has waited for the plan of this result, which was sent behind another."""
        gap = max(0, result.started_ns - self._ended_ns)
        self._own_gap_ns = min(gap, _GAP_GROWTH * self._own_gap_ns)
        return gap - self._own_gap_ns

    def delay(self, now: float) -> float:
        """Seconds until the next plan should be made; 0: now.

        A step takes at least the time of the last one, and a smaller one its share of that: what takes as
        long for few tokens as for many (to read the weights) only makes it longer.
        """
        if len(self._under_way) != 1:
            return 0.0
        share = min(1.0, self._under_way[0][0] / self._num_tokens)
        margin = _PLANNING_FACTOR * self._planning
        return max(0.0, self._began + self.patience * share * self._duration - margin - now)
