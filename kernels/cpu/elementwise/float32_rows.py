"""The operations on rows of float32: those of bfloat16, with another element."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.activation import gate_rows
from kernels.cpu.elementwise.elements import FLOAT32
from kernels.cpu.elementwise.gated_gelu import gate_gelu_rows
from kernels.cpu.elementwise.layer_norm import layer_norm_rows
from kernels.cpu.elementwise.plain_activation import activate_rows
from kernels.cpu.elementwise.records import (
    ActivationRecord,
    GatedGeluRecord,
    GatedSiluRecord,
    LayerNormRecord,
    NormRecord,
    RotaryRecord,
    ScaledAddRecord,
)
from kernels.cpu.elementwise.rms_norm import rms_norm_rows
from kernels.cpu.elementwise.rotary import rotate_rows
from kernels.cpu.elementwise.scaled_add import scaled_add_rows


@operation
def rms_norm_float32(record: NormRecord, first: int, count: int, thread: int) -> None:
    rms_norm_rows(FLOAT32, record, first, count)


@operation
def layer_norm_float32(record: LayerNormRecord, first: int, count: int, thread: int) -> None:
    layer_norm_rows(FLOAT32, record, first, count)


@operation
def gated_silu_float32(record: GatedSiluRecord, first: int, count: int, thread: int) -> None:
    gate_rows(FLOAT32, record, first, count)


@operation
def activation_float32(record: ActivationRecord, first: int, count: int, thread: int) -> None:
    activate_rows(FLOAT32, record, first, count)


@operation
def rotary_float32(record: RotaryRecord, first: int, count: int, thread: int) -> None:
    rotate_rows(FLOAT32, record, first, count)


@operation
def gated_gelu_float32(record: GatedGeluRecord, first: int, count: int, thread: int) -> None:
    gate_gelu_rows(FLOAT32, record, first, count)


@operation
def scaled_add_float32(record: ScaledAddRecord, first: int, count: int, thread: int) -> None:
    scaled_add_rows(FLOAT32, record, first, count)
