"""Parts of inputs: compiled code writes what Python writes."""

import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.matmul.words import (  # noqa: E402
    PAIR_BYTES,
    PAIRS,
    QUADS,
    split_inputs,
)

pytestmark = pytest.mark.cpu_kernels

ROWS = 2


def two_rows(x: int, words: int, pairs: int, integers: int) -> None:
    split_inputs(PAIRS, x, ROWS, words, pairs)
    split_inputs(QUADS, x, ROWS, words, integers)


@pytest.mark.parametrize("words", [1, 16, 21])
def test_parts_of_inputs(words: int):
    """Side by side: the words where they have one part, and in sum what the words are."""
    x = torch.randint(-(2**31), 2**31, (ROWS * words,), generator=torch.Generator().manual_seed(1)).int()
    results = torch.zeros(2, 2, 2 * ROWS * words + 32, dtype=torch.int32)  # zeros behind each row
    for run, out in zip((compiled(two_rows), two_rows), results, strict=True):
        run(x.data_ptr(), words, out[0].data_ptr(), out[1].data_ptr())
    assert torch.equal(results[0], results[1])
    pairs, integers = results[0]
    if PAIR_BYTES == 8:
        parts = pairs[: 2 * x.numel()].view(-1, 2)
        pairs = parts[:, 0] + (parts[:, 1] >> 16 & 0xFFFF)
    if QUADS.parts == 2:
        parts = integers[: 2 * x.numel()].view(-1, 2)
        integers = parts[:, 0] + (parts[:, 1] << 8)
    assert torch.equal(pairs[: x.numel()], x) and torch.equal(integers[: x.numel()], x)
