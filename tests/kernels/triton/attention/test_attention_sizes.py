"""Launch parameters: powers of two, within what the hardware has, and few variants."""

import pytest
import torch

from kernels.triton.attention.attention_sizes import (
    LEAST_CHUNK,
    MOST_SPLITS,
    choose_splits,
    decode_sizes,
    prefill_sizes,
)

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128, 192, 256])
def test_sizes(head_dim: int, quantized: bool, dtype: torch.dtype):
    sizes = [decode_sizes(rows, head_dim, dtype, quantized) for rows in (1, 3, 16, 17, 64)]
    sizes.append(prefill_sizes(head_dim, dtype, quantized))
    for size in sizes:
        assert is_power_of_2(size.rows) and is_power_of_2(size.tile) and size.rows >= 16
        assert size.warps in (4, 8) and 1 <= size.stages <= 3
        # Keys and values of all stages in the shared memory of a processor of compute capability 9.0.
        width = 1 if quantized else dtype.itemsize
        padded = 1 << (head_dim - 1).bit_length()
        assert 2 * size.stages * size.tile * padded * width <= 227 << 10


@pytest.mark.parametrize("programs", [1, 8, 64, 1000])
@pytest.mark.parametrize("length", [1, 255, 256, 4096, 131_072])
def test_splits(programs: int, length: int):
    """A power of two; one where programs are plenty or rows short; never more than there are chunks."""
    splits, tiles = choose_splits(programs, length, None, 64, CPU)
    assert is_power_of_2(splits) and splits <= MOST_SPLITS
    assert splits <= max(1, -(-length // LEAST_CHUNK)) and tiles * 64 == LEAST_CHUNK
    if programs == 1000:
        assert splits == 1


def test_splits_of_a_given_chunk():
    assert choose_splits(1, 1000, 128, 64, CPU) == (8, 2)
    with pytest.raises(AssertionError, match="too small"):
        choose_splits(1, 100_000, 64, 64, CPU)
