"""Teaches Triton's interpreter (3.6 to 3.9), which runs kernels on a CPU, to compute as a device does.

    bfloat16    is kept as 16-bit integers: rounding to it cuts off, and a product is one of the integers
    e4m3        what rounds up to the next power of two loses the carry, and ties go upwards
    products    are numpy's, whose order of addition depends on the shapes of the operands

Conversions go through torch. Operands of a product are widened to float32, and added to the accumulator in
ascending order, one by one: as the matrix units do it, but for the few values that one instruction takes. So
bits depend on what is multiplied and not on how many rows there are, and a kernel whose sums have another
order in another schedule is found out. Arithmetic on bfloat16 itself stays wrong: our kernels widen what they
load, and tests would see one that does not.

Work of the interpreter that changes no result, more than half of its time, is skipped: skip_useless_work().
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
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
    """Returns a tensor of the interpreter's form of it."""
    tensor = torch.from_numpy(np.ascontiguousarray(data))
    return tensor.view(dtype) if dtype in BITS else tensor


def convert(data: npt.NDArray[Any], source: str, target: str) -> npt.NDArray[Any]:
    """Returns the data as another format, rounded to nearest, ties to even."""
    dtype = DTYPES[target]
    result = to_torch(data, DTYPES[source]).to(dtype)
    if dtype in BITS:
        result = result.view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8)
    return result.numpy().reshape(data.shape)


def add_product(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], acc: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns acc + a b, in float32: a [M, K], b [K, N], acc [M, N]. Products are added one by one, k
    ascending."""
    result = acc.copy()
    term = np.empty_like(result)
    for column, row in zip(a.T, b, strict=True):
        np.multiply(column[:, None], row, out=term)
        result += term
    return result


def skip_useless_work() -> None:
    """Saves time, for the rest of the process; results are the same.

    - The language's operations are replaced by numpy's once, and not at each launch and at each call of a
      device function, such as tl.sum, for which the interpreter looks through all of the language.
    - Sums of integers are not computed once more in 64 bits for an assertion that is dropped, unless the
      interpreter debugs.
    - numpy's dtypes are kept; the interpreter makes a table of all for each look-up.
    - Types of blocks, and what tensors take from their types, are made once for each shape.
    - Operands of one type and one shape are not checked, converted and spread by the rules for all others.
    """
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: SimpleNamespace(restore=lambda: None)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
    find = interpreter._get_np_dtype
    known = cache(find)
    interpreter._get_np_dtype = lambda kind: (known if type(kind.scalar) is tl.dtype else find)(kind.scalar)
    make_types_once()
    pass_equal_operands()


def make_types_once() -> None:
    """Equal types of blocks are one object; a tensor copies what the first one of its type was given."""
    make, fill = tl.block_type.__init__, tl.tensor.__init__
    made = dict[tuple[Any, ...], Any]()

    def new(cls: Any, *fields: Any) -> Any:
        if cls is not tl.block_type or not fields:  # a type that has more, or a copy
            return object.__new__(cls)
        element, shape = fields
        sizes = (size.value if type(size) is tl.constexpr else size for size in shape)
        key = (type(element), element.name, getattr(element, "address_space", None), *sizes)
        block = made.get(key)
        if block is None:
            block = object.__new__(cls)
            make(block, element, shape)
            made[key] = block
        return block

    def init(self: Any, *fields: Any) -> None:
        if type(self) is not tl.block_type:
            make(self, *fields)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        known = type.__dict__.get("of_tensors")
        if known is None:
            fill(self, handle, type)
            type.of_tensors = {
                name: value for name, value in vars(self).items() if name not in ("handle", "type")
            }
        else:
            self.__dict__.update(known)
            self.handle, self.type = handle, type

    tl.block_type.__new__, tl.block_type.__init__ = new, init
    tl.tensor.__init__ = init_tensor


PLAIN = {"int32", "uint32", "int64", "uint64", "fp32", "fp64"}
"""Types in which an operation computes if both operands have it."""


def pass_equal_operands() -> None:
    """Two tensors of one type are ready for an operation; two of one shape need not be broadcast."""
    semantic = type(interpreter.interpreter_semantic)
    check, spread = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value

    def checked(self: Any, lhs: Any, rhs: Any, *options: Any, **named: Any) -> Any:
        if type(lhs) is type(rhs) is tl.tensor and lhs.type is rhs.type and lhs.dtype.name in PLAIN:
            return lhs, rhs
        return check(self, lhs, rhs, *options, **named)

    def spread_out(self: Any, lhs: Any, rhs: Any) -> Any:
        one, other = lhs.type, rhs.type
        alike = one.is_block() and other.is_block() and list(one.shape) == list(other.shape)
        if one is other or alike:
            return lhs, rhs
        return spread(self, lhs, rhs)

    semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value = checked, spread_out


@cache
def compute_as_a_device_does() -> None:
    """Changes the interpreter for the rest of the process."""
    skip_useless_work()
    builder = interpreter.InterpreterBuilder
    cast, to_float8 = builder.cast_impl, builder.create_fp_to_fp

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
        left, right = (convert(x.data, str(x.dtype.scalar), "fp32") for x in (a, b))
        return interpreter.TensorHandle(add_product(left, right, d.data), d.dtype.scalar)

    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast_impl, create_fp_to_fp, create_dot
