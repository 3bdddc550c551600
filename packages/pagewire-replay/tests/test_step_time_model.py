"""The formula for step times."""

import pytest

from engine_core.step.plan import Plan
from pagewire_replay.step_time_model import Shape, fit, shape_of

TRUE = (900.0, 11.0, 0.25, 3.0)


def shapes() -> list[Shape]:
    steps = [((5, 7), (1, 1)), ((0,), (30,)), ((90, 10, 4), (1, 1, 9)), ((400,), (1,)), ((0, 8), (16, 1))]
    return [shape_of(starts, counts) for starts, counts in steps]


def durations(rows: list[Shape], coefficients: Shape = TRUE) -> list[float]:
    return [sum(c * x for c, x in zip(coefficients, row, strict=True)) for row in rows]


def test_a_step_has_tokens_positions_and_rows() -> None:
    assert shape_of([5, 7], [1, 3]) == (1.0, 4.0, 16.0, 2.0)


def test_a_linear_duration_is_found_exactly() -> None:
    model = fit(shapes(), durations(shapes()), 0.001)
    assert [1e6 * value for value in model.coefficients] == pytest.approx(TRUE)
    assert model.error < 1e-9 and model.num_steps == 5 and model.host == 0.001
    plan = Plan(rows=[0, 1], starts=[5, 7], counts=[1, 1])
    assert 1e6 * model.of(plan) == pytest.approx(durations(shapes())[0])


def test_no_coefficient_is_negative() -> None:
    model = fit(shapes(), durations(shapes(), (900.0, 11.0, -0.5, 3.0)), 0.0)
    assert min(model.coefficients) == 0.0 and model.error > 0


def test_what_the_steps_do_not_determine_is_not_guessed() -> None:
    """Where steps only decode, tokens and rows are the same number: tokens count."""
    rows = [shape_of([10 * i] * i, [1] * i) for i in range(1, 9)]
    model = fit(rows, [100.0 + 20.0 * row[1] for row in rows], 0.0)
    assert [1e6 * value for value in model.coefficients] == pytest.approx([100, 20, 0, 0], abs=1e-6)
    constant = fit([shape_of([3], [1])] * 4, [250.0] * 4, 0.0)
    assert [1e6 * value for value in constant.coefficients] == pytest.approx([250, 0, 0, 0])


def test_without_steps_nothing_takes_time() -> None:
    assert fit([], [], 0.0).of(Plan(rows=[0], starts=[3], counts=[1])) == 0.0
