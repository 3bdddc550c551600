"""How long a step takes: a linear formula fitted to the steps of a recording.

    step = a + b * tokens computed + c * positions attended to + d * rows

The coefficients have the least squares of relative errors, and none is negative. `host` is the mean time from
a result to the next plan while there was work. The formula is linear: `error` says how well that fits.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine_core.step.plan import Plan
from pagewire.internal.v1.recording_pb2 import RecordedCall
from pagewire_replay.reader import PlanReader, facts_of

_LEAST_US = 1.0
Shape = tuple[float, float, float, float]  # 1, tokens, positions, rows


def shape_of(starts: Sequence[int], counts: Sequence[int]) -> Shape:
    """Returns what the duration of a step depends on."""
    tokens = sum(counts)
    return 1.0, float(tokens), float(sum(starts) + tokens), float(len(counts))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The formula, in seconds. error: the median of the relative errors of the recorded steps."""

    coefficients: Shape
    host: float
    num_steps: int
    error: float

    def of(self, plan: Plan) -> float:
        """Returns the seconds that the worker takes for a plan."""
        shape = shape_of(plan.starts, plan.counts)
        return sum(c * x for c, x in zip(self.coefficients, shape, strict=True))

    def __str__(self) -> str:
        a, b, c, d = (1e6 * value for value in self.coefficients)
        return (
            f"fitted to {self.num_steps} recorded steps: {a:.0f} + {b:.3g} * tokens + {c:.3g} * positions"
            f" + {d:.3g} * rows us, {1e6 * self.host:.0f} us between steps; median error {self.error:.1%}"
        )


def measure(recording: Iterable[RecordedCall]) -> tuple[StepTimes, bool]:
    """Returns the fitted step times of a recording, and whether its steps were planned one ahead.

    In that case the time between steps is hidden behind the steps, and counts as 0.
    """
    plans = PlanReader()
    under_way: deque[Shape] = deque()
    shapes, durations, between = list[Shape](), list[float](), list[float]()
    planned_at, num_live, is_ahead, was_idle = 0.0, 0, False, True
    for call in recording:
        if call.event.name == "add":
            num_live += facts_of(call.event)["n"]
        elif call.event.name == "ended":
            num_live -= 1
            was_idle = was_idle or not num_live
        elif call.HasField("plan") and call.plan.step:
            columns = plans.read(call.plan)
            is_ahead = is_ahead or bool(under_way)
            if not (was_idle or is_ahead):
                between.append(call.plan.now - planned_at - 1e-6 * durations[-1])
            planned_at, was_idle = call.plan.now, False
            under_way.append(shape_of(columns["starts"], columns["counts"]))
        elif call.HasField("result"):
            shapes.append(under_way.popleft())
            durations.append(call.result.duration_us)
    host = 0.0 if is_ahead or not between else max(sum(between) / len(between), 0.0)
    return fit(shapes, durations, host), is_ahead


def fit(shapes: Sequence[Shape], durations_us: Sequence[float], host: float) -> StepTimes:
    """Returns the formula for steps and their durations. Each step's relative error has the same weight."""
    if not shapes:
        return StepTimes((0.0, 0.0, 0.0, 0.0), host, 0, 0.0)
    times = np.maximum(np.array(durations_us), _LEAST_US) * 1e-6
    rows = np.array(shapes) / times[:, None]  # [steps, 4]: each row's weighted sum is to become 1
    scales = np.abs(rows).max(axis=0)
    scales[scales == 0] = 1.0
    scaled = rows / scales
    used = _independent(scaled)
    solution = _least_squares(scaled, used)
    while (solution < 0).any():
        used.remove(min(used, key=lambda i: solution[i] * scaled[:, i].sum()))
        solution = _least_squares(scaled, used)
    errors = np.abs(scaled @ solution - 1)
    a, b, c, d = map(float, solution / scales)
    return StepTimes((a, b, c, d), host, len(times), float(np.median(errors)))


def _independent(rows: "np.ndarray[Any, Any]") -> list[int]:
    """Returns the columns that are no combination of columns before them: only these have a coefficient."""
    used: list[int] = []
    for column in range(rows.shape[1]):
        if np.linalg.matrix_rank(rows[:, [*used, column]], tol=1e-6 * len(rows) ** 0.5) > len(used):
            used.append(column)
    return used


def _least_squares(rows: "np.ndarray[Any, Any]", used: list[int]) -> "np.ndarray[Any, Any]":
    """Returns coefficients [4], 0 for columns that are not used, that bring each row's sum nearest to 1."""
    solution = np.zeros(rows.shape[1])
    solution[used] = np.linalg.lstsq(rows[:, used], np.ones(len(rows)))[0]
    return solution
