"""Draws follow the reference distribution; numbers of different tokens are independent. Seeds are fixed."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from kernels.ops.sampling.choose import uniforms_of
from kernels.ops.sampling.columns import SamplingColumns
from tests.worker.sampling_reference import Case, reference_probabilities, reference_uniform
from worker.sampling.sampler import Sampler

V = 50
CPU = torch.device("cpu")
ROWS, STEPS = 250, 80  # 20,000 draws


def fits(tokens: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> bool:
    """Chi-squared, rare tokens thrown together; and nothing outside the support."""
    observed = np.bincount(tokens, minlength=len(probabilities))
    if observed[probabilities == 0].any():
        return False
    expected = probabilities * len(tokens)
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    if keep.sum() == 1:
        return True
    return bool(stats.chisquare(observed[keep], expected[keep]).pvalue > 0.001)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0, "typical_p": 0.6},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
    ],
    ids=lambda sampling: "-".join(f"{name}{value}" for name, value in sampling.items()),
)
def test_draws_follow_the_distribution(sampling: dict[str, float]) -> None:
    """The same logits at every position of 250 sequences: half of them siblings of one seed."""
    logits = torch.randn(V, generator=torch.Generator().manual_seed(7)) * 2
    sampler = Sampler(ROWS, V, CPU)
    for row in range(ROWS):
        case = Case({**sampling, "seed": 5 if row % 2 else 2**63 + row}, sequence_index=row)
        sampler.add_row(row, case.new_row(row), [0], [])
    rows = list(range(ROWS))
    tokens = torch.cat([sampler.sample(logits.expand(ROWS, V).clone(), rows) for _ in range(STEPS)])
    assert fits(tokens.numpy(), reference_probabilities(logits.numpy(), Case(sampling)))


def test_draws_follow_the_penalized_distribution() -> None:
    """First tokens after one and the same history, of 5,000 siblings."""
    logits = torch.randn(V, generator=torch.Generator().manual_seed(8)) * 2
    sampling = {
        "temperature": 0.9,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.5,
        "logit_bias": {11: 1.0},
        "seed": 3,
    }
    case = Case(sampling, prompt=list(range(0, V, 3)), output=[1, 1, 2, 40, 40, 40, 3])
    count = 5000
    sampler = Sampler(count, V, CPU)
    sampler.add_row(0, case.new_row(0), case.prompt, case.output)
    for row in range(1, count):
        sampler.fork_row(row, 0, row)
    tokens = sampler.sample(logits.expand(count, V).clone(), list(range(count)))
    assert fits(tokens.numpy(), reference_probabilities(logits.numpy(), case))


def numbers(seeds: list[int], indexes: list[int], positions: range) -> npt.NDArray[np.float64]:
    """[len(seeds), len(positions)]."""
    columns, rows, found = SamplingColumns(len(seeds)), list(range(len(seeds))), []
    for position in positions:
        for row, (seed, index) in enumerate(zip(seeds, indexes, strict=True)):
            columns.set_row(row, seed=seed, sequence_index=index, position=position)
        found.append(uniforms_of(rows, columns))
    return torch.stack(found, dim=1).numpy()


def independent(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> bool:
    """Both uniform, and the pairs uniform on a 10 by 10 grid."""
    pairs = np.histogram2d(x.ravel(), y.ravel(), bins=10, range=[[0, 1], [0, 1]])[0]
    tests = [
        stats.kstest(x.ravel(), "uniform"),
        stats.kstest(y.ravel(), "uniform"),
        stats.chisquare(pairs.ravel()),
    ]
    return all(test.pvalue > 0.001 for test in tests)


def test_numbers_are_independent() -> None:
    """Of neighbouring positions, indexes and seeds, seeds that differ in the high word alone included."""
    count = 200
    same, steps = [42] * count, range(count)
    by_index = numbers(same, list(steps), range(100))
    assert independent(by_index[:, :-1], by_index[:, 1:])
    assert independent(by_index[:-1], by_index[1:])
    by_seed = numbers(list(steps), [0] * count, range(100))
    assert independent(by_seed[:-1], by_seed[1:])
    by_high_word = numbers([i << 32 for i in steps], [0] * count, range(100))
    assert independent(by_high_word[:-1], by_high_word[1:])
    assert independent(by_seed[1:], by_high_word[1:])


def test_numbers_are_as_defined() -> None:
    """All of a seed's 64 bits, and any position."""
    seeds = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    indexes = [0, 3, 0, 1, 2**32 - 1, 7]
    got = numbers(seeds, indexes, range(62, 130))
    for row, (seed, index) in enumerate(zip(seeds, indexes, strict=True)):
        for column, position in enumerate(range(62, 130)):
            assert got[row, column] == reference_uniform(seed, index, position)
