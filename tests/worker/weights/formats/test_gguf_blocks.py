"""Every type of block becomes the numbers that the `gguf` package makes of it, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from kernels.api import Code
from pagewire.gguf.tensor_types import TENSOR_TYPES, TensorType
from tests.gguf_files import random_blocks
from worker.weights.formats.gguf import dequantize

ROWS, BLOCKS = 7, 3


def random_rows(tensor_type: TensorType) -> np.ndarray:
    """[ROWS, bytes of a row]: any integers, finite scales of both signs."""
    if tensor_type.block_values == 1:
        values = torch.from_numpy(np.random.default_rng(0).normal(size=(ROWS, 64)).astype(np.float32))
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[tensor_type.name]
        return values.to(kind).view(torch.uint8).numpy()
    return random_blocks(tensor_type, ROWS * BLOCKS).reshape(ROWS, -1)


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


def test_mxfp4_is_that_of_the_product_in_4_bits():
    """The low halves of 16 bytes, then the high ones, are codes; the byte in front is an exponent of 2."""
    tensor_type = TENSOR_TYPES[39]
    blocks = torch.from_numpy(random_blocks(tensor_type, ROWS))
    codes = torch.cat((blocks[:, 1:] & 15, blocks[:, 1:] >> 4), dim=1).long()
    scales = torch.exp2(blocks[:, :1].float() - 127)
    assert torch.equal(dequantize(blocks, tensor_type), Code.doubled(codes).float() / 2 * scales)
