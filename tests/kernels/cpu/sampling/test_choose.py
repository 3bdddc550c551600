"""A row's token as Python runs the kernel's own functions: that of the compiled function, and of torch's
operations."""

import itertools
import math

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.sampling import choose as module  # noqa: E402
from kernels.cpu.sampling.api import sampling_kernels  # noqa: E402
from kernels.cpu.sampling.records import ChooseRecord  # noqa: E402
from kernels.cpu.sampling.scratch import scratch_bytes  # noqa: E402
from kernels.cpu.sampling.vector_loops import CHUNK, NO_TOKEN  # noqa: E402
from kernels.ops.sampling.choose import choose_tokens  # noqa: E402
from kernels.ops.sampling.columns import COLUMNS, UNKNOWN, SamplingColumns  # noqa: E402
from tests.kernels.sampling_inputs import smooth_logits, tied_logits  # noqa: E402


def params_of(
    temperature: float,
    k: int = 0,
    top_p: float = 1,
    min_p: float = 0,
    typical_p: float = 1,
    position: int = 3,
) -> SamplingColumns:
    """Of one row."""
    columns, seed = SamplingColumns(1), 123456789 | 987654321 << 32
    values = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "typical_p": typical_p}
    columns.set_row(0, **values, top_k=k, seed=seed, sequence_index=2, position=position)
    return columns


def test_no_column_is_ignored() -> None:
    """A new filter is computed here, or leaves its rows to torch."""
    left = {COLUMNS[column]: neutral for column, neutral in module.LEFT_TO_TORCH}
    assert {*module._NAMES, *left} == set(COLUMNS)
    assert left == {"typical_p": 1.0}


def in_python(logits: torch.Tensor, params: SamplingColumns) -> int:
    """What choose_rows() does with one row, [V]."""
    vocab_size = len(logits)
    scratch = np.zeros(scratch_bytes(vocab_size) // 8 + 16, np.int64)
    at = scratch.ctypes.data
    rows, token, addresses = np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([at])
    record = ChooseRecord(
        logits=logits.data_ptr(),
        vocab_size=vocab_size,
        rows_of_columns=rows.ctypes.data,
        columns=params.address,
        num_rows=1,
        tokens=token.ctypes.data,
        scratch=addresses.ctypes.data,
    )
    module.choose_rows.reference(record, 0, 1, 0)
    return int(token[0])


KERNELS = sampling_kernels()
FILTERS = [
    {},
    {"k": 1},
    {"k": 7},
    {"top_p": 0.6},
    {"min_p": 0.1},
    {"typical_p": 0.5},
    {"k": 20, "top_p": 0.8, "min_p": 0.02, "typical_p": 0.9},
    {"top_p": 0.9, "min_p": 0.05, "typical_p": 0.7},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab_size", [11, 63, 65, 150])
def test_python_gives_the_same_token(vocab_size: int, filters: dict[str, float]) -> None:
    """Also with equals and masked tokens among the logits."""
    assert KERNELS is not None
    filters = {name: min(value, 5) if vocab_size == 11 else value for name, value in filters.items()}
    for seed, make in enumerate((smooth_logits, tied_logits)):
        logits = make(1, vocab_size, seed=vocab_size + seed)
        params = params_of(0.8, position=seed, **filters)  # type: ignore[arg-type]
        expected = choose_tokens(logits, [0], params).item()
        found = int(KERNELS.known_tokens(logits, [0], params))
        assert in_python(logits[0], params) == found
        assert found in (expected, UNKNOWN)


SHARES = [0.1, 0.25, 0.5, 0.75, 1 - 2**-24]


@pytest.mark.parametrize(("top_p", "position"), [*itertools.product(SHARES, range(4))])
def test_a_share_that_equals_a_sum(top_p: float, position: int) -> None:
    """Of eight equal tokens, two shares end exactly between two of them; others within one."""
    assert KERNELS is not None
    logits = torch.full((1, 70), -math.inf)
    logits[0, [0, 3, 17, 40, 63, 64, 65, 69]] = 1.0
    params = params_of(1.0, top_p=top_p, position=position)
    found = int(KERNELS.known_tokens(logits, [0], params))
    expected = choose_tokens(logits, [0], params).item()
    assert found in (expected, UNKNOWN) and (found == expected or (8 * top_p) % 1 == 0 or top_p > 0.99)


@pytest.mark.parametrize("k", [1, 2, 3, 64, 65, 127])
def test_exactly_k_of_equals_can_be_drawn(k: int) -> None:
    """All logits equal: the first k tokens, over many random numbers, and all of these where they are few."""
    assert KERNELS is not None
    logits, seen = torch.zeros(1, 128), set()
    for position in range(60):
        params = params_of(1.0, k=k, position=position)
        seen.add(int(KERNELS.known_tokens(logits, [0], params)))
    assert all(0 <= token < k for token in seen) and (k > 3 or seen == set(range(k)))


@pytest.mark.parametrize("token", [0, CHUNK - 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 4])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_one_token_is_all_there_is(token: int, filters: dict[str, float]) -> None:
    """Wherever it is, whatever the filters, it is chosen."""
    assert KERNELS is not None
    logits = torch.full((1, 2 * CHUNK + 5), -math.inf)
    logits[0, token] = -3.25
    params = params_of(1.3, **filters)  # type: ignore[arg-type]
    assert KERNELS.choose_tokens(logits, [0], params)[0] == token


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_python_finds_broken_rows_too(value: float, filters: dict[str, float]) -> None:
    logits = smooth_logits(1, 100)[0]
    logits[99] = value
    assert in_python(logits, params_of(1.0, **filters)) == NO_TOKEN  # type: ignore[arg-type]
    assert in_python(torch.full((100,), -math.inf), params_of(1.0, **filters)) == NO_TOKEN  # type: ignore[arg-type]


def test_draws_have_the_frequencies_of_the_weights() -> None:
    """Of three tokens in three chunks, by 600 positions' random numbers: within five deviations."""
    assert KERNELS is not None
    logits = torch.full((1, 140), -math.inf)
    for token, share in ((5, 0.2), (70, 0.5), (139, 0.3)):
        logits[0, token] = math.log(share)
    counts = {5: 0, 70: 0, 139: 0}
    params = params_of(1.0)
    for position in range(600):
        params.positions[0] = position
        counts[int(KERNELS.known_tokens(logits, [0], params))] += 1
    for token, share in ((5, 0.2), (70, 0.5), (139, 0.3)):
        assert abs(counts[token] - 600 * share) < 5 * math.sqrt(600 * share * (1 - share))
