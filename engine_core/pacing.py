"""When to plan the next step while a step is running: as late as the device allows.

    device   |------------- k -------------|------------- k+1 -----
    core     ^ result of k-1     ^ plan     ^ result of k
             |<----- delay ----->|<- margin ->|

A request that arrives before the plan is made is in step k+1; a later one waits for one step more. If plans
were made at once, step k+1 would be closed when step k has hardly begun. So the core waits; but a device that
waits for a plan costs all requests more than a late arrival costs one. The margin is generous, and grows each
time the device had to wait: on a busy machine, plans are made early.

A device that computes in the worker's own thread (a CPU) always has a gap between two steps: it sends a
result and reads the next plan. The shortest gap is its own; a longer one was waiting.
"""

from collections import deque
from math import inf

from engine_core.step.plan import Plan
from engine_core.step.result import Result

_MAX_PATIENCE = 0.75
"""Share of a step to wait for at most. Steps of equal size differ: contexts grow."""
_RECOVERY = 0.002
"""What patience gains with each step that began in time; a step that did not halves it."""
_TOLERANCE = 0.02
"""Share of a step that the device may idle beyond its own gap before that counts as waiting."""
_GAP_GROWTH = 1.01
"""Factor by which the device's own gap, the shortest of recent ones, grows with each step."""
_LEAST_DELAY_S = 0.002
"""A shorter wait gains a late arrival less than it costs all requests: to wait is to be woken once more for
each step, which takes a tenth of a millisecond of a core that a CPU's worker may need."""
_PLANNING_FACTOR = 2.0
"""How much longer planning may take than the slowest of the recent plans."""
_PLANNING_DECAY = 0.9


class Pace:
    """Measures how long steps and their planning take. Times in seconds, on one clock."""

    def __init__(self) -> None:
        self.patience = _MAX_PATIENCE
        # (tokens of a plan; whether it was sent behind another one), oldest first
        self._in_flight: deque[tuple[int, bool]] = deque()
        self._began = 0.0  # the oldest plan in flight
        self._num_tokens, self._duration = 1, 0.0  # of the last step that ended
        self._ended_ns = 0  # on the device's clock
        self._own_gap_ns = inf  # of the device, between two steps
        self._planning = 0.0  # the slowest of recent plans; older ones count less

    def sent(self, plan: Plan, began: float, now: float) -> None:
        """Registers a plan that was sent now. began: when planning began."""
        self._planning = max(now - began, _PLANNING_DECAY * self._planning)
        if not self._in_flight:
            self._began = now
        self._in_flight.append((sum(plan.counts), bool(self._in_flight)))

    def ended(self, result: Result, now: float) -> None:
        """Registers the result of the oldest plan; the next plan, if there is one, is running."""
        self._num_tokens, is_behind = self._in_flight.popleft()
        self._began, self._duration = now, result.duration_us / 1e6
        if is_behind and self._waited_ns(result) > _TOLERANCE * 1000 * result.duration_us:
            self.patience /= 2
        else:
            self.patience = min(_MAX_PATIENCE, self.patience + _RECOVERY)
        self._ended_ns = result.started_ns + 1000 * result.duration_us

    def _waited_ns(self, result: Result) -> float:
        """Returns how long the device waited for the plan of a result, which was sent behind another one."""
        gap = max(0, result.started_ns - self._ended_ns)
        self._own_gap_ns = min(gap, _GAP_GROWTH * self._own_gap_ns)
        return gap - self._own_gap_ns

    def delay(self, now: float) -> float:
        """Returns the seconds until the next plan should be made; 0: now.

        A step takes at least as long as the last one, a smaller step its share of that: what takes equally
        long for few and many tokens (reading the weights) only makes it longer.
        """
        if len(self._in_flight) != 1:
            return 0.0
        share = min(1.0, self._in_flight[0][0] / self._num_tokens)
        margin = _PLANNING_FACTOR * self._planning
        delay = self._began + self.patience * share * self._duration - margin - now
        return delay if delay >= _LEAST_DELAY_S else 0.0
