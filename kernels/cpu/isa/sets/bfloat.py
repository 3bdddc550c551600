"""LLVM's type of bfloat16 values, for instructions that take them."""

from llvmlite import ir


class BFloats(ir.types.Type):
    """A vector of bfloat, a type that llvmlite does not know: no literals, but it can be cast to."""

    def __init__(self, length: int) -> None:
        self.length = length

    def _to_string(self) -> str:
        return f"<{self.length} x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloats) and other.length == self.length

    def __hash__(self) -> int:
        return hash((BFloats, self.length))
