"""bitsandbytes: weights of 8 bits with a scale per output, or of 4 bits by a table with a scale per block.

8 bits  weight [N, K] int8, SCB [N] float32: the largest absolute value of each output
        weight[n, k] = q[n, k] * SCB[n] / 127

4 bits  weight [N * K / 2, 1] uint8, the upper half of a byte first; values run on over rows
        weight.quant_map [16]: what each of 16 numbers stands for (nf4 or fp4)
        weight.absmax [blocks]: a scale per block of values; with nested scales uint8 numbers of
        weight.nested_quant_map [256] times weight.nested_absmax, plus nested_offset
        weight.quant_state.bitsandbytes__nf4: JSON with shape, blocksize, nested_blocksize, nested_offset
"""

import json

import torch

from pagewire.errors import StartupError
from worker.config.hf_config import Fields
from worker.weights.checkpoint import Checkpoint
from worker.weights.formats.packed_tensor import (
    PackedTensor,
    expect_shape,
    matrix_shape,
    modules_with,
    part_names,
)
from worker.weights.source import WHAT

_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_PARTS = ("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
_PARTS_OF_8_BITS = ("weight", "SCB", "weight_format")
_MAX_STATE_BYTES = 1 << 16


def find_bitsandbytes(stored: Checkpoint, settings: Fields) -> dict[str, PackedTensor]:
    """Returns the packed weights by name. Raises StartupError."""
    found = {}
    for module in modules_with(stored, "SCB"):
        found[f"{module}.weight"] = _of_8_bits(stored, module)
    for ending in _STATES:
        for module in modules_with(stored, ending):
            found[f"{module}.weight"] = _of_4_bits(stored, module, ending)
    return found


def _of_8_bits(stored: Checkpoint, module: str) -> PackedTensor:
    outputs, inputs = matrix_shape(stored, f"{module}.weight")
    expect_shape(stored, f"{module}.SCB", (outputs,), (outputs, 1))
    scales = stored.read(f"{module}.SCB", ()).float().view(-1, 1)

    def unpack(first: int, end: int) -> torch.Tensor:
        weight = stored.read(f"{module}.weight", (slice(first, end),)).float()
        return weight * scales[first:end] / 127

    return PackedTensor((outputs, inputs), part_names(stored, module, _PARTS_OF_8_BITS), unpack)


def _of_4_bits(stored: Checkpoint, module: str, state_name: str) -> PackedTensor:
    state = _read_state(stored, f"{module}.{state_name}")
    shape = state.integers("shape")
    if len(shape) != 2:
        raise state.wrong("shape", "must have two sizes")
    outputs, inputs = shape
    size = state.integer("blocksize")
    if inputs % 2:
        raise state.wrong("shape", "must have an even number of columns")
    expect_shape(stored, f"{module}.weight", (outputs * inputs // 2, 1))
    expect_shape(stored, f"{module}.weight.quant_map", (16,))
    table = stored.read(f"{module}.weight.quant_map", ()).float()
    scales = _scales(stored, module, state, -(-outputs * inputs // size))

    def unpack(first: int, end: int) -> torch.Tensor:
        packed = stored.read(f"{module}.weight", (slice(first * inputs // 2, end * inputs // 2),))
        numbers = torch.stack((packed >> 4, packed & 15), -1).flatten().long()
        block = torch.arange(first * inputs, end * inputs) // size
        return (table[numbers] * scales[block]).view(end - first, inputs)

    return PackedTensor((outputs, inputs), part_names(stored, module, (*_PARTS, state_name)), unpack)


def _scales(stored: Checkpoint, module: str, state: Fields, blocks: int) -> torch.Tensor:
    """[blocks] float32."""
    name = f"{module}.weight.absmax"
    expect_shape(stored, name, (blocks,))
    scales = stored.read(name, ())
    if f"{module}.weight.nested_absmax" not in stored:
        return scales.float()
    size = state.integer("nested_blocksize")
    expect_shape(stored, f"{module}.weight.nested_absmax", (-(-blocks // size),))
    expect_shape(stored, f"{module}.weight.nested_quant_map", (256,))
    table, outer = (
        stored.read(f"{module}.weight.nested_{each}", ()).float() for each in ("quant_map", "absmax")
    )
    offset = state.number("nested_offset", 0.0, above=-1.0)
    return table[scales.long()] * outer[torch.arange(blocks) // size] + offset


def _read_state(stored: Checkpoint, name: str) -> Fields:
    """Returns the JSON object that a tensor of bytes holds."""
    content = stored.read(name, ())
    if content.dtype != torch.uint8 or content.numel() > _MAX_STATE_BYTES:
        raise StartupError(WHAT, f"tensor {name} in {stored.file_of(name)} is no text")
    try:
        values = json.loads(bytes(content.flatten().tolist()))
    except (ValueError, RecursionError) as error:
        raise StartupError(WHAT, f"tensor {name} is not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise StartupError(WHAT, f"tensor {name} is not a JSON object")
    return Fields(values, name)
