"""Triton's interpreter (3.6 to 3.9) is wrong about two formats; here it is taught to compute as a device.

    bfloat16    is kept as 16-bit integers: rounding to it cuts off, and a product is one of the integers
    e4m3        what rounds up to the next power of two loses the carry, and ties go upwards

Conversions go through torch, and operands of a product are widened first: sums are in float32. Arithmetic on
bfloat16 itself stays wrong. Our kernels widen what they load, and the tests would see one that does not.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter

DTYPES = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}
BITS = {torch.bfloat16: np.uint16, torch.float8_e4m3fn: np.uint8}
"""What the interpreter keeps them as."""


def to_torch(data: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """data: the interpreter's form of it."""
    tensor = torch.from_numpy(np.ascontiguousarray(data))
    return tensor.view(dtype) if dtype in BITS else tensor


def convert(data: npt.NDArray[Any], source: str, target: str) -> npt.NDArray[Any]:
    """Rounded to nearest, ties to even."""
    dtype = DTYPES[target]
    result = to_torch(data, DTYPES[source]).to(dtype)
    if dtype in BITS:
        result = result.view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8)
    return result.numpy().reshape(data.shape)


def compute_as_a_device_does() -> None:
    """For the rest of the process."""
    builder = interpreter.InterpreterBuilder
    cast, to_float8, dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    def needs_care(source: str, target: str) -> bool:
        return source in DTYPES and target in DTYPES and bool({source, target} & {"bf16", "fp8e4nv"})

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = str(src.dtype.scalar), str(dst_type.scalar)
        if not needs_care(source, target):
            return cast(self, src, dst_type)
        return interpreter.TensorHandle(convert(src.data, source, target), dst_type.scalar)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        source, target = str(src.dtype.scalar), str(dst_type.scalar)
        if not needs_care(source, target):
            return to_float8(self, src, dst_type, rounding)
        return interpreter.TensorHandle(convert(src.data, source, target), dst_type.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if str(a.dtype.scalar) == "bf16":
            a, b = (
                interpreter.TensorHandle(convert(x.data, "bf16", "fp32"), interpreter.tl.float32)
                for x in (a, b)
            )
        return dot(self, a, b, d, precision, imprecise)

    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast_impl, create_fp_to_fp, create_dot
