"""NEON: 32 registers of 128 bits, of which a vector takes four. Every aarch64 processor has it.

A tile's sums take 24 registers, as with AVX2, whose 16 registers hold twice as much each: tiles are the same.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.operations import Operations, halves_of, joined
from kernels.cpu.isa.vectors import F32S, I32, I32S, call, load, load_lanes, splat, store, store_lanes

_INT32S, _BYTES = ir.VectorType(I32, 4), ir.VectorType(ir.IntType(8), 16)
_FULL_SYSTEM = ir.Constant(I32, 15)
"""What an instruction barrier is for: it has no other."""


def quarters_of(builder: Any, values: Any) -> list[Any]:
    """The registers of a vector, from its first lanes to its last."""
    return [quarter for half in halves_of(builder, values) for quarter in halves_of(builder, half)]


def of_quarters(builder: Any, quarters: Sequence[Any]) -> Any:
    """A vector of four registers."""
    return joined(builder, *(joined(builder, *quarters[first : first + 2]) for first in (0, 2)))


class NEON(Operations):
    """A vector takes four registers."""

    def pause(self, builder: Any) -> None:
        """An instruction barrier, since a yield is over at once."""
        call(builder, "llvm.aarch64.isb", ir.VoidType(), _FULL_SYSTEM)

    def from_table(self, builder: Any, table: Sequence[int], indexes: Any) -> Any:
        """tbl."""
        bytes_, quarters = ir.Constant(_BYTES, list(table)), []
        for quarter in quarters_of(builder, indexes):
            each = builder.bitcast(quarter, _BYTES)
            found = call(builder, "llvm.aarch64.neon.tbl1.v16i8", _BYTES, bytes_, each)
            quarters.append(builder.bitcast(found, _INT32S))
        return of_quarters(builder, quarters)

    def round_to_int(self, builder: Any, values: Any) -> Any:
        """The instruction makes 0 of NaN, and of large numbers the nearest int32."""
        name = "llvm.aarch64.neon.fcvtns.v4i32.v4f32"
        rounded = [call(builder, name, _INT32S, quarter) for quarter in quarters_of(builder, values)]
        fits = builder.fcmp_ordered("<", values, splat(F32S, 2.0**31))
        return builder.select(fits, of_quarters(builder, rounded), splat(I32S, -(2**31)))

    def load_first(self, builder: Any, address: Any, kind: Any, mask: Any, whole: Any) -> Any:
        """No instruction loads masked lanes: they are loaded one by one."""
        with builder.if_else(whole) as (at_once, some):
            with at_once:
                every, block = load(builder, address, kind), builder.block
            with some:
                first, other_block = load_lanes(builder, address, kind, mask), builder.block
        loaded = builder.phi(kind)
        loaded.add_incoming(every, block)
        loaded.add_incoming(first, other_block)
        return loaded

    def store_first(self, builder: Any, values: Any, address: Any, mask: Any, whole: Any) -> None:
        """No instruction stores masked lanes: they are stored one by one."""
        with builder.if_else(whole) as (at_once, some):
            with at_once:
                store(builder, values, address)
            with some:
                store_lanes(builder, values, address, mask)


OPERATIONS = NEON()
