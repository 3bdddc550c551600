"""Uniform numbers in Triton: bit for bit those of the operation."""

import pytest
import torch
import triton.language as tl

from kernels.triton.sampling.draws import uniform53
from tests.kernels.references.sampling import philox4x32_reference, uniform53_reference
from tests.kernels.triton.probes import jit

CASES = [
    (0, 0, 0),
    (1, 0, 0),
    (0, 1, 0),
    (0, 0, 1),
    (-1, (1 << 31) - 1, (1 << 31) - 1),
    (1 << 62, 12345, 678),
    (-(1 << 63), 7, 7),
    (0xFFFFFFFF, 2, 3),
    (0x100000000, 2, 3),
]


@jit
def _uniforms(seeds, indexes, positions, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    seed, index = tl.load(seeds + at, mask=inside, other=0), tl.load(indexes + at, mask=inside, other=0)
    position = tl.load(positions + at, mask=inside, other=0)
    tl.store(out + at, uniform53(seed, index, position), mask=inside)


def uniforms(seeds: torch.Tensor, indexes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(seeds), dtype=torch.float64, device=seeds.device)
    _uniforms[(-(-len(seeds) // 128),)](seeds, indexes, positions, out, len(seeds), BLOCK=128)
    return out


def expected(seed: int, index: int, position: int) -> float:
    key = seed % (1 << 64)
    words = philox4x32_reference((index, position, 0, 0), (key % (1 << 32), key >> 32))
    return uniform53_reference(words)


def columns(device: torch.device, cases: list[tuple[int, int, int]]) -> list[torch.Tensor]:
    seeds, indexes, positions = zip(*cases, strict=True)
    kinds = torch.int64, torch.int32, torch.int32
    lists = seeds, indexes, positions
    return [torch.tensor(x, dtype=kind, device=device) for x, kind in zip(lists, kinds, strict=True)]


def test_known_cases(device: torch.device):
    """Both halves of the seed count, and so do index and position."""
    found = uniforms(*columns(device, CASES)).tolist()
    assert found == [expected(*case) for case in CASES]
    assert len(set(found)) == len(CASES)


@pytest.mark.parametrize("count", [1, 127, 128, 129])
def test_sizes(count: int, device: torch.device):
    """Around the number of rows of a program; a number does not depend on the others."""
    cases = [(3 * a, a, 5 * a) for a in range(count)]
    assert uniforms(*columns(device, cases)).tolist() == [expected(*case) for case in cases]


def test_range(device: torch.device):
    found = uniforms(*columns(device, [(a, 0, 0) for a in range(500)]))
    assert (found >= 0).all() and (found < 1).all() and 0.4 < found.mean().item() < 0.6
