"""From logits to tokens: the compiled function against torch's operations."""

import math

import pytest
import torch

from kernels.cpu.sampling.api import sampling_kernels
from kernels.ops.sampling.choose import argmax, choose_tokens
from kernels.ops.sampling.columns import UNKNOWN, SamplingColumns
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

KERNELS = sampling_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="llvmlite is not installed")
POSITIONS = [0, 5, 77, 1000]
ROWS = [2, 0, 3, 1]


def params(
    temperature: float, k: int = 0, top_p: float = 1, min_p: float = 0, typical_p: float = 1
) -> SamplingColumns:
    """Four rows that differ in their random numbers; parameters as float32 as they come."""
    given = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p}
    values = {name: torch.tensor(value, dtype=torch.float32).item() for name, value in given.items()}
    keys = torch.randint(0, 1 << 32, (4, 2), generator=torch.Generator().manual_seed(k)).tolist()
    columns = SamplingColumns(4)
    for row, ((low, high), position) in enumerate(zip(keys, POSITIONS, strict=True)):
        columns.set_row(row, **values, top_k=k, seed=low | high << 32, sequence_index=row, position=position)
    return columns


def choose(logits: torch.Tensor, params: SamplingColumns) -> list[int]:
    """By the compiled function."""
    assert KERNELS is not None
    tokens: list[int] = KERNELS.choose_tokens(logits, ROWS[: len(logits)], params).tolist()
    return tokens


EACH_WAY = [params(1), params(1, 5), params(1, 0, 0.5), params(1, 0, 1, 0.1), params(1, 0, 1, 0, 0.7)]


@pytest.mark.parametrize("vocab_size", [1, 7, 64, 129, 1031])
@pytest.mark.parametrize("temperature", [1e-45, 0.3, 1.0, 3.0])
def test_same_tokens(vocab_size: int, temperature: float) -> None:
    """Any two values of two filters together, on logits with and without equals: token for token."""
    others = ((0, 1), (0.05, 1), (1, 1), (0, 0.3), (0.05, 0.9))
    for seed, make in enumerate((smooth_logits, tied_logits)):
        for i, k in enumerate((0, 1, 3, 50, 1000)):
            for j, top_p in enumerate((1e-6, 0.3, 0.9, 0.999, 1)):
                min_p, typical_p = others[(i + j + 1) % 5]
                logits = make(4, vocab_size, seed=k + seed)
                before = logits.clone()
                of_rows = params(temperature, k if k < vocab_size else 0, top_p, min_p, typical_p)
                expected = choose_tokens(logits, ROWS, of_rows).tolist()
                assert choose(logits, of_rows) == expected, (k, top_p, min_p, typical_p)
                assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab_size", [1, 7, 64, 129, 1031])
def test_greedy(vocab_size: int) -> None:
    """The lowest id among equals, zeros of both signs too."""
    for logits in (smooth_logits(4, vocab_size), tied_logits(4, vocab_size), torch.zeros(4, vocab_size)):
        logits[:, ::3] *= -1  # some zeros become negative
        assert choose(logits, params(0)) == argmax(logits).tolist()


@pytest.mark.parametrize("of_rows", [params(0), *EACH_WAY])
@pytest.mark.parametrize("token", [0, 63, 64, 99])
def test_broken_rows(of_rows: SamplingColumns, token: int) -> None:
    """NaN of either sign, +inf, or nothing at all: no token, and for no other row."""
    logits = smooth_logits(4, 100)
    expected = choose(logits, of_rows)[3]
    logits[0, token] = math.nan
    logits[1, token] = math.inf
    logits[2] = -math.inf
    assert choose(logits, of_rows) == [-1, -1, -1, expected]
    logits[0, token] = -math.nan
    assert choose(logits, of_rows)[0] == -1


@pytest.mark.parametrize("of_rows", EACH_WAY)
def test_few_tokens_are_left(of_rows: SamplingColumns) -> None:
    """Masks leave fewer than top_k, in chunks far from one another."""
    masked = torch.full((4, 1000), -math.inf)
    for token in (63, 64, 998):
        masked[:, token] = 1.0 if token == 64 else 0.5
    assert choose(masked, of_rows) == choose_tokens(masked, ROWS, of_rows).tolist()


def test_huge_logits() -> None:
    """From the lowest to the largest float32, and where weights end."""
    largest = torch.finfo(torch.float32).max
    logits = torch.linspace(-1, 1, 200).mul(largest).repeat(4, 1)
    logits[1] = torch.linspace(-800, 0, 200)
    for of_rows in (
        params(1),
        params(1, 9),
        params(1, 0, 0.99),
        params(1e-45, 0, 0.9),
        params(100, 0, 1, 0.5),
        params(1, 0, 1, 0, 0.9),
        params(1, 9, 1, 0, 0.9),
    ):
        assert choose(logits, of_rows) == choose_tokens(logits, ROWS, of_rows).tolist()


def wide_logits(kind: str) -> torch.Tensor:
    """[4, 20000] float32 of which most are in the nucleus."""
    x = 0.1 * torch.randn(4, 20_000, generator=torch.Generator().manual_seed(1))
    if kind == "rounded":
        x = x.bfloat16().float()
    elif kind == "equal":
        x = torch.zeros_like(x)
    elif kind == "masked":
        x[:, 5::7] = -math.inf
    elif kind == "high where one looks":
        x[:, ::64] += 10  # how far scores go down is estimated from these
    elif kind == "steep":
        x = -(torch.arange(20_000) * 7919 % 20_000 + 1.0).log().repeat(4, 1) * 1.5
    return x


MANY = [  # top_p, min_p, typical_p
    (1, 0, 1),
    (0.1, 0, 1),
    (0.9, 0, 1),
    (0.9999, 0, 1),
    (1, 0.8, 1),
    (0.7, 0.9, 1),
    (0.7, 0.99, 1),
    (1, 0, 0.2),
    (1, 0, 0.9),
    (0.8, 0, 0.7),
    (1, 0.7, 0.7),
    (0.9, 0.5, 0.999),
]


@pytest.mark.parametrize("kind", ["smooth", "rounded", "equal", "masked", "high where one looks", "steep"])
def test_many_tokens_are_left(kind: str) -> None:
    """A nucleus of thousands: its end is found in a bucket of scores, the token in a chunk."""
    logits = wide_logits(kind)
    for temperature in (1e-45, 0.7, 50.0):
        for filters in MANY:
            of_rows = params(temperature, 0, *filters)
            expected = choose_tokens(logits, ROWS, of_rows).tolist()
            assert choose(logits, of_rows) == expected, (temperature, filters)


def test_what_hangs_on_the_last_bits_is_left_to_torch() -> None:
    """A share of all but 6e-8, and 20,000 tokens with 5e-12 of the weight each: which of them is the last one
    depends on the order in which they are added up."""
    logits = torch.full((1, 20_000), math.log(5e-12))
    logits[0, 123] = 0
    assert KERNELS is not None
    for of_rows, is_known in ((params(1, 0, 1 - 2**-24), False), (params(1, 0, 1), True)):
        assert (UNKNOWN not in KERNELS.known_tokens(logits, ROWS[:1], of_rows)) == is_known
        assert choose(logits, of_rows) == choose_tokens(logits, ROWS[:1], of_rows).tolist()


def test_rows_are_independent(threads: int) -> None:
    """Among threads, and alone: the same tokens."""
    logits = smooth_logits(4, 500)
    for of_rows in (params(0), params(1), params(1, 40, 0.9, 0.01)):
        expected = choose(logits, of_rows)
        assert [choose(logits, of_rows) for _ in range(5)] == [expected] * 5
        assert choose(logits[:1], of_rows) == expected[:1]
