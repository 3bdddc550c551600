"""Types of GGUF tensors: how many values a block has, and how many bytes.

Numbers and names are those of ggml. A type without a size is known by name only, and refused.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """How the values of a tensor are stored. A row is a whole number of blocks."""

    name: str
    block_values: int
    block_bytes: int


F32 = TensorType("F32", 1, 4)
F16 = TensorType("F16", 1, 2)
BF16 = TensorType("BF16", 1, 2)
Q4_0 = TensorType("Q4_0", 32, 18)
"""Integers of 4 bits with a scale: what a CPU computes with as it is (worker.cpu.weights)."""

TENSOR_TYPES = {
    0: F32,
    1: F16,
    2: Q4_0,
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    29: TensorType("IQ1_M", 256, 56),
    30: BF16,
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}
"""By number."""

REFUSED = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4"}
"""Names of types that are not read."""

FLOATS = frozenset({F32.name, F16.name, BF16.name})
"""Types that hold their values as they are."""
