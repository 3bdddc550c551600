"""The parts of sampling that work on vectors: compiled code writes what Python writes, bit for bit."""

import math
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.isa.lanes import lowest_bit  # noqa: E402
from kernels.cpu.isa.vectors import write_f64, write_i64  # noqa: E402
from kernels.cpu.sampling import logits_processors  # noqa: E402
from kernels.cpu.sampling.choose import find_largest  # noqa: E402
from kernels.cpu.sampling.records import LargestRecord  # noqa: E402
from kernels.cpu.sampling.vector_loops import (  # noqa: E402
    CHUNK,
    at_least,
    chunk_largest,
    chunk_mass,
    chunk_places,
    chunk_weights,
    in_bucket,
    masses,
    weigh,
)

INF, NAN = math.inf, math.nan
RATE = math.log2(math.e) / 0.7


def largest(x: int, out: int) -> None:
    """Of two chunks; then which logits of the first reach a limit."""
    chunk_largest(x, 2 * CHUNK, out)
    write_i64(out + 8, at_least(x, 0.25))
    write_i64(out + 16, lowest_bit(at_least(x, 0.25)))


def weights(x: int, out: int) -> None:
    """One by one, and sums of those above a limit."""
    weigh(x, 3.5, 0.7, out, 2)
    above, reached = masses(x, out, 2, 0.5)
    write_f64(out + 128, above)
    write_f64(out + 136, reached)


def sums(x: int, out: int) -> None:
    """Of chunks, with and without a limit."""
    write_f64(out, chunk_mass(x, 0.25, 3.5, RATE))
    write_f64(out + 24, chunk_weights(x, 3.5, RATE, out + 64))


def places(x: int, out: int) -> None:
    """Buckets."""
    chunk_places(x, 3.5, 40.0, out)
    write_i64(out + 256, in_bucket(x, 3.5, 40.0, 255))


def bits(x: int, out: int) -> None:
    """Of a mask that begins with a word of all, a word of none and others; 100 tokens."""
    logits_processors._mask_row(x, out, 100)


@pytest.mark.parametrize("kernel", [largest, weights, sums, places, bits])
def test_compiled_code_is_python(kernel: Callable[[int, int], None]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * CHUNK, generator=generator)
    x[5], x[70], x[9] = 3.5, (NAN if kernel is largest else 1.0), -INF
    results = []
    for run in (compiled(kernel), kernel):
        logits, out = x.clone(), torch.zeros(640, dtype=torch.uint8)
        out.view(torch.int32)[:4] = torch.tensor([-1, 0, 0x12345678, -5]) if kernel is bits else 0
        run(logits.data_ptr(), out.data_ptr())
        results.append((logits.view(torch.int32), out))
    assert all(torch.equal(got, expected) for got, expected in zip(*results, strict=True))
    assert results[0][1].any() and (kernel is not bits or not torch.equal(results[0][0], x.view(torch.int32)))


def test_the_largest_of_pieces() -> None:
    """Of two rows of 40 chunks and a part of one, as Python finds them."""
    x = torch.randn(2, 40 * CHUNK + 9, generator=torch.Generator().manual_seed(2))
    x[1, 35 * CHUNK] = x[1, -1] = NAN
    found = torch.zeros(2, 41)
    record = LargestRecord(logits=x.data_ptr(), vocab_size=x.shape[1], logit_rows=2, largest=found.data_ptr())
    find_largest.reference(record, 0, 2, 0)
    padded = torch.cat((x, torch.full((2, CHUNK - 9), -INF)), 1).view(2, 41, CHUNK).amax(-1)
    assert torch.equal(found[0], padded[0])
    assert found[1].isnan().nonzero()[:, 0].tolist() == [*range(32, 40), 40]
