"""The parts that the sampling kernels are made of."""

import math
import random

import numpy as np
import pytest
import torch

from tests.kernels.references.sampling import philox4x32_reference, uniform53_reference

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.sampling import candidates, full_vocab  # noqa: E402
from kernels.cpu.sampling import choose as sampling_choose
from kernels.cpu.sampling.scratch import BEST, TEMPERATURE, cut_bytes, scratch_bytes  # noqa: E402
from kernels.cpu.sampling.vector_loops import ABOUT, chunk_mass, weigh  # noqa: E402
from kernels.ops.sampling.columns import UNKNOWN  # noqa: E402

cut, uniform = compiled(candidates.cut), compiled(sampling_choose.uniform)
lowest_score, next_above = compiled(full_vocab.lowest_score), compiled(full_vocab.next_above)


@compiled
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


@compiled
def mass_of(x: int, limit: float, largest: float, rate: float) -> float:
    """The same."""
    return float(chunk_mass(x, limit, largest, rate))


@pytest.mark.parametrize("depth", [1e-6, 1.0, 30.0, 700.0])
def test_masses_are_about_right(depth: float) -> None:
    """Of the weights from a limit on, each as exact as is promised; nothing where all is masked."""
    x = 3 - depth * torch.rand(64, generator=torch.Generator().manual_seed(0))
    for limit in (-torch.inf, float(x[7])):
        expected = ((x[x >= limit].double() - 3) / 0.7).exp().sum().item()
        got = mass_of(x.data_ptr(), limit, 3.0, math.log2(math.e) / 0.7)
        assert abs(got - expected) <= 2 * ABOUT * expected
    masked = torch.full((64,), -torch.inf)
    assert mass_of(masked.data_ptr(), -3e38, 3.0, 1.0) == 0


SCRATCH = torch.empty(scratch_bytes(64), dtype=torch.uint8)


@pytest.mark.parametrize("score", [-3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38])
def test_next_above(score: float) -> None:
    """Zeros of both signs are equals, so that the next above both is the same."""
    expected = torch.tensor(score).nextafter(torch.tensor(torch.inf)).item()
    got = next_above(np.float32(score), SCRATCH.data_ptr())
    assert got == (expected if score != 0 else torch.tensor(1e-45).item()) and got > score


@pytest.mark.parametrize("largest", [-20.0, 0.0, 5.5])
@pytest.mark.parametrize("min_p", [1e-30, 0.05, 1.0])
def test_lowest_score(largest: float, min_p: float) -> None:
    """Its weight is enough, and that of the next below is not."""
    for temperature in (0.3, 1.0, 100.0):
        for field, value in ((BEST, largest), (TEMPERATURE, temperature)):
            SCRATCH[field : field + 8].view(torch.float64)[0] = value
        lowest = torch.tensor(lowest_score(min_p, SCRATCH.data_ptr()))
        below = lowest.nextafter(torch.tensor(-torch.inf))
        enough = [math.exp((float(x) - largest) / temperature) >= min_p for x in (lowest, below)]
        assert enough == [True, False]


def test_uniform_is_philox() -> None:
    """Any seed, index and position."""
    numbers = random.Random(0)
    for _ in range(200):
        low, high, index, position = (numbers.getrandbits(32) for _ in range(4))
        words = philox4x32_reference((index, position, 0, 0), (low, high))
        seed = np.array(low | high << 32, np.uint64).astype(np.int64)
        assert uniform(seed, index, position) == uniform53_reference(words)


def run_cut(
    x: list[float], weights: list[float], target: float, error: float = 0.0, before: float = 0.0
) -> int:
    """On tensors."""
    scores, masses = torch.tensor(x), torch.tensor(weights, dtype=torch.float64)
    scratch = torch.empty(int(cut_bytes(len(x))), dtype=torch.uint8)
    return int(cut(scores.data_ptr(), masses.data_ptr(), len(x), before, target, error, scratch.data_ptr()))


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
    """A target that is as close to a sum as the error that the sum may have."""
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.0) == 1
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.0, 1e-9) == UNKNOWN
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 2.5, 1e-9) == 2
    assert run_cut([3.0, 3.0, 1.0], [1.0, 1.0, 1.0], 1.5, 1e-9) == 1


def test_cut_goes_on_from_what_ranks_above() -> None:
    """Which counts as weight; nothing is left to keep where it is enough by itself."""
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 6.5, 1e-9, before=5.0) == 1
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 4.5, 1e-9, before=5.0) == UNKNOWN
    assert run_cut([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], 8.5, 1e-9, before=5.0) == UNKNOWN
