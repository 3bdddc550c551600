"""Launch parameters: powers of two, within what the hardware has; of one query the same in any launch."""

import pytest
import torch

from kernels.triton.attention.attention_sizes import (
    CHUNK,
    MOST_PART_BYTES,
    choose_splits,
    most_registers,
    num_chunks,
    tile_sizes,
)
from kernels.triton.capabilities import CAPABILITIES

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("head_dim", [16, 24, 64, 80, 96, 128, 192, 256])
def test_sizes(head_dim: int, quantized: bool, dtype: torch.dtype):
    for capability in CAPABILITIES.values():
        for group in (1, 3, 7, 16, 71):
            size = tile_sizes(group, head_dim, dtype, quantized, capability)
            assert is_power_of_2(size.rows) and is_power_of_2(size.tile) and size.rows >= max(16, group)
            assert size.warps in (4, 8) and 1 <= size.stages <= 3 and CHUNK % size.tile == 0
            # Keys and values of all stages in the shared memory of a processor.
            width = 1 if quantized else dtype.itemsize
            padded = 1 << (head_dim - 1).bit_length()
            assert 2 * size.stages * size.tile * padded * width <= capability.shared_limit


def test_the_assembler_has_a_bound_where_it_would_spill():
    """To fit a third program: in float32, and for small heads where a processor has fewer warps."""
    sizes = tile_sizes(7, 64, torch.bfloat16, capability=CAPABILITIES[86])
    bounds = {
        number: most_registers(sizes, 64, torch.bfloat16, capability)
        for number, capability in CAPABILITIES.items()
    }
    assert bounds == {80: None, 86: 255, 89: 255, 90: None, 100: None, 120: None}
    assert most_registers(sizes, 128, torch.bfloat16, CAPABILITIES[86]) is None
    assert most_registers(sizes, 64, torch.float32, CAPABILITIES[90]) == 128


@pytest.mark.parametrize("programs", [1, 8, 64, 1000])
@pytest.mark.parametrize("length", [1, CHUNK, CHUNK + 1, 4096, 131_072])
def test_splits(programs: int, length: int):
    """One where programs are plenty or rows short; never more than there are chunks."""
    chunks = num_chunks(length)
    assert (chunks - 1) * CHUNK < length <= chunks * CHUNK
    splits = choose_splits(programs, 1, 1000, chunks, CPU)
    assert 1 <= splits <= chunks and (splits == 1 or splits * programs <= 2 * 132)
    if programs == 1000:
        assert splits == 1


def test_results_of_chunks_have_a_limit():
    """In bytes; beyond it each program merges what it computes."""
    assert choose_splits(8, 1, MOST_PART_BYTES // 4, 4, CPU) == 4
    assert choose_splits(8, 2, MOST_PART_BYTES // 4, 4, CPU) == 1
