"""The parts that the sampling kernels are made of."""

import random

import numpy as np
import pytest
import torch

from kernels.philox import philox4x32_reference, uniform53_reference

numba = pytest.importorskip("numba")
from kernels.cpu.sampling_cut import UNKNOWN, cut, cut_bytes  # noqa: E402
from kernels.cpu.sampling_uniform import uniform  # noqa: E402
from kernels.cpu.sampling_vectors import weigh  # noqa: E402


@numba.njit("void(int64, float64, float64, int64, int64)", error_model="numpy")
def weigh_all(x: int, largest: float, temperature: float, out: int, vectors: int) -> None:
    """An intrinsic has to be called by something."""
    weigh(x, largest, temperature, out, vectors)


def test_exp_is_within_one_unit_in_the_last_place() -> None:
    """Of torch's, which is of the exact value; down to the smallest numbers there are, and exactly 1 at 0."""
    x = torch.cat(
        [-((torch.rand(8000, generator=torch.Generator().manual_seed(0)) * 28) ** 2), torch.zeros(8)]
    )
    x[:5] = torch.tensor([-torch.inf, -1e38, -745.2, -746, -1e-45])
    weights = torch.empty(len(x), dtype=torch.float64)
    weigh_all(x.data_ptr(), 0.0, 1.0, weights.data_ptr(), len(x) // 8)
    expected = x.double().exp()
    unit = np.spacing(expected.numpy())
    assert (np.abs(weights.numpy() - expected.numpy()) <= unit).all()
    assert weights[:2].tolist() == [0, 0] and (weights[-8:] == 1).all()
    weigh_all(x.data_ptr(), 3.25, 0.7, weights.data_ptr(), len(x) // 8)
    expected = ((x.double() - 3.25) / 0.7).exp()
    assert (np.abs(weights.numpy() - expected.numpy()) <= np.spacing(expected.numpy())).all()


def test_uniform_is_philox() -> None:
    """Any seed, index and position."""
    numbers = random.Random(0)
    for _ in range(200):
        low, high, index, position = (numbers.getrandbits(32) for _ in range(4))
        words = philox4x32_reference((index, position, 0, 0), (low, high))
        assert uniform(low, high, index, position) == uniform53_reference(words)


def run_cut(x: list[float], weights: list[float], target: float, error: float = 0.0) -> int:
    """On tensors."""
    scores, masses = torch.tensor(x), torch.tensor(weights, dtype=torch.float64)
    scratch = torch.empty(int(cut_bytes(len(x))), dtype=torch.uint8)
    return int(cut(scores.data_ptr(), masses.data_ptr(), len(x), target, error, scratch.data_ptr()))


@pytest.mark.parametrize("n", [1, 2, 9, 100, 1000])
def test_cut(n: int) -> None:
    """Scores with many equals and with none; whole weights, so that sums are exact in any order."""
    numbers = random.Random(n)
    for levels in (1, 2, 5, 1 << 20):
        x = [float(numbers.randrange(-levels, levels)) for _ in range(n)]
        weights = [float(numbers.randrange(5)) for _ in range(n)]
        order = sorted(range(n), key=lambda i: (-x[i], i))
        for target in {1, 2, n // 2, sum(weights), sum(weights) + 1} - {0}:
            mass, expected = 0.0, UNKNOWN
            for place in order:
                mass += weights[place]
                if mass >= target:
                    expected = place
                    break
            assert run_cut(x, weights, float(target)) == expected


def test_cut_says_what_it_does_not_know() -> None:
    """A target that is as close to a sum as the error that the sum may have; but equals of the best are added
    up one after the other, which is exact."""
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.0) == 1
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.0, 1e-9) == UNKNOWN
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.5, 1e-9) == 2
    assert run_cut([3.0, 3.0, 1.0], [1.0, 1.0, 1.0], 2.0, 1e-9) == 1
