"""Every type of block becomes the numbers that the `gguf` package makes of it, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from pagewire.gguf.tensor_types import TENSOR_TYPES, TensorType
from worker.weights.formats.gguf import dequantize

ROWS, BLOCKS = 7, 3
HALVES = {"Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,), "Q6_K": (208,)} | dict.fromkeys(
    ("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)
)
"""Where blocks have numbers of 16 bits: random ones would be NaN now and then."""


def random_rows(tensor_type: TensorType) -> np.ndarray:
    """[ROWS, bytes of a row]: any integers, finite scales of both signs."""
    rng = np.random.default_rng(tensor_type.block_bytes)
    if tensor_type.block_values == 1:
        values = torch.from_numpy(rng.normal(size=(ROWS, 64)).astype(np.float32))
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[tensor_type.name]
        return values.to(kind).view(torch.uint8).numpy()
    blocks = rng.integers(0, 256, (ROWS * BLOCKS, tensor_type.block_bytes), dtype=np.uint8)
    for first in HALVES[tensor_type.name]:
        scales = rng.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, first : first + 2] = scales.view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("number", TENSOR_TYPES, ids=lambda number: TENSOR_TYPES[number].name)
def test_blocks_as_the_gguf_package_reads_them(number: int):
    tensor_type = TENSOR_TYPES[number]
    theirs_type = gguf.GGMLQuantizationType(number)
    assert gguf.GGML_QUANT_SIZES[theirs_type] == (tensor_type.block_values, tensor_type.block_bytes)
    rows = random_rows(tensor_type)
    ours = dequantize(torch.from_numpy(rows), tensor_type)
    theirs = gguf.dequantize(rows, theirs_type)
    assert ours.dtype == torch.float32
    assert np.array_equal(ours.numpy().view(np.uint32), theirs.view(np.uint32))
