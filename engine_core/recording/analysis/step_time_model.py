"""How long a step takes, as a formula fitted to the steps of a recording.

    step = a + b * tokens computed + c * positions looked at + d * rows

with the coefficients that make the relative errors least, none of them negative; `host` is the mean time
from a result to the next plan, while there was something to do. The formula knows no curves: between small
and large steps it is off by what `error` says.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from engine_core.recording.plans import PlanReader
from engine_core.step.plan import Plan
from pagewire.internal.v1.recording_pb2 import RecordedCall

_LEAST_US = 1.0
Shape = tuple[float, float, float, float]  # 1, tokens, positions, rows


def shape_of(starts: Sequence[int], counts: Sequence[int]) -> Shape:
    """What the time of a step depends on."""
    tokens = sum(counts)
    return 1.0, float(tokens), float(sum(starts) + tokens), float(len(counts))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds. error: half of the recorded steps are nearer to the formula than this (relative)."""

    coefficients: Shape
    host: float
    num_steps: int
    error: float

    def of(self, plan: Plan) -> float:
        """How long the worker takes for a plan."""
        shape = shape_of(plan.starts, plan.counts)
        return sum(c * x for c, x in zip(self.coefficients, shape, strict=True))

    def __str__(self) -> str:
        a, b, c, d = (1e6 * value for value in self.coefficients)
        return (
            f"fitted to {self.num_steps} recorded steps: {a:.0f} + {b:.3g} * tokens + {c:.3g} * positions"
            f" + {d:.3g} * rows us, {1e6 * self.host:.0f} us between steps; median error {self.error:.1%}"
        )


def measure(recording: Iterable[RecordedCall]) -> tuple[StepTimes, bool]:
    """What the steps of a recording took, and whether they were planned one step ahead.

    Then the time between steps is hidden behind the steps, and counts as none.
    """
    plans = PlanReader()
    under_way: deque[Shape] = deque()
    shapes, durations, between = list[Shape](), list[float](), list[float]()
    planned_at, num_live, is_ahead, was_idle = 0.0, 0, False, True
    for call in recording:
        if call.HasField("arrival"):
            num_live += call.arrival.n
        elif call.HasField("end"):
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
    """From steps and what they took."""
    times = [max(duration, _LEAST_US) * 1e-6 for duration in durations_us]
    weighted = [
        [x / time for x in shape] for shape, time in zip(shapes, times, strict=True)
    ]  # so that each is to become 1
    used = [0, 1, 2, 3]
    coefficients = _least_squares(weighted, used)
    while any(value < 0 for value in coefficients):
        used.remove(min(used, key=lambda i: coefficients[i] * _scale(weighted, i)))
        coefficients = _least_squares(weighted, used)
    errors = [abs(sum(c * x for c, x in zip(coefficients, row, strict=True)) - 1) for row in weighted]
    a, b, c, d = coefficients
    return StepTimes((a, b, c, d), host, len(times), median(errors) if errors else 0.0)


def _scale(rows: Sequence[Sequence[float]], column: int) -> float:
    return sum(row[column] for row in rows)


def _least_squares(rows: Sequence[Sequence[float]], used: Sequence[int]) -> list[float]:
    """Coefficients, 0 for columns that are not used, that bring each row's sum nearest to 1."""
    scales = {i: max((abs(row[i]) for row in rows), default=0.0) or 1.0 for i in used}
    columns = [[row[i] / scales[i] for row in rows] for i in used]
    matrix = [
        [sum(x * y for x, y in zip(left, right, strict=True)) for right in columns] + [sum(left)]
        for left in columns
    ]
    solution = _solve(matrix)
    result = [0.0] * 4
    for i, value in zip(used, solution, strict=True):
        result[i] = value / scales[i]
    return result


def _solve(matrix: list[list[float]]) -> list[float]:
    """Gauss-Jordan elimination; what the rows do not determine is 0."""
    size = len(matrix)
    least = 1e-9 * max((abs(matrix[i][i]) for i in range(size)), default=0.0)
    pivots: list[int | None] = [None] * size
    free = set(range(size))
    for column in range(size):
        row = max(free, key=lambda i: abs(matrix[i][column]), default=None)
        if row is None or abs(matrix[row][column]) <= least:
            continue
        free.remove(row)
        pivots[column] = row
        matrix[row] = [value / matrix[row][column] for value in matrix[row]]
        for other in range(size):
            if other != row and matrix[other][column]:
                factor = matrix[other][column]
                matrix[other] = [x - factor * y for x, y in zip(matrix[other], matrix[row], strict=True)]
    return [0.0 if row is None else matrix[row][size] for row in pivots]
