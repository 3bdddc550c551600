"""What becomes of the sums of a product."""

from kernels.cpu.compiler.vectors import f32x16, i32x16
from kernels.cpu.isa.simd import load_f32, load_i32, store_first_bf16, store_first_f32, to_f32


def dequantized(total: i32x16, params: int, scale: float) -> f32x16:
    """(sum - correction) * scale of the column * scale of the row."""
    return to_f32(total - load_i32(params + 128)) * load_f32(params + 64) * scale


def store_columns(out: int, out_bytes: int, x: f32x16, columns: int) -> None:
    """Writes the first of 16 columns, as float32 if out_bytes is 4, else as bfloat16."""
    if out_bytes == 4:
        store_first_f32(out, x, columns)
    else:
        store_first_bf16(out, x, columns)
