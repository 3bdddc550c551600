"""Products with weights of 4 to 32 bits, as shares of what one core multiplies (benchmarks.cpu_peaks): in
float32, and in int8 where weights are integers.

    python -m benchmarks.cpu_products --cpu-kernels avx2                        # bfloat16
    python -m benchmarks.cpu_products --cpu-kernels avx2 --dtypes float32,float16 --rows 32
    python -m benchmarks.cpu_products --dtypes int8,int4 --rows 1,4,32,256

CPU time of one thread. Peaks and all numbers of rows take turns, and figures are medians. Each product goes
through the weights of some layers, so that these come from memory or a large cache; the call of a product
from Python is part of it.
"""

import argparse
import statistics
import time

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from kernels.cpu.instruction_sets import select  # noqa: E402
from kernels.cpu.matmul.halves.weight import narrow_weight  # noqa: E402
from kernels.cpu.matmul.matrix import PackedMatrix  # noqa: E402
from kernels.cpu.matmul.packed import pack_weight  # noqa: E402
from kernels.cpu.weight_forms import weight_forms  # noqa: E402

SHAPES = (960, 576), (3072, 576), (576, 1536), (576, 576), (9728, 896), (896, 4864)
"""(N, K), of M1 and M2."""
AT_ONCE = 1 << 25
"""Bytes of weights that a shape's products go through, about."""


INTEGERS = "int8", "int4"


def packed(shape: tuple[int, int], dtype: str) -> PackedMatrix:
    """A random weight. float16: computed in float32, held in 16 bits."""
    weight = 0.02 * torch.randn(shape)
    if dtype in INTEGERS:
        return weight_forms(dtype).matrix(weight.bfloat16(), None, None)
    if dtype == "float16":
        return narrow_weight(weight.half().float(), None)
    return pack_weight(weight.to(getattr(torch, dtype)), None)


def peak_of(dtype: str) -> float:
    """GFLOP/s, or GOP/s, that one core reaches."""
    from benchmarks.cpu_peaks import peak_gflops, peak_quads  # compiles

    return (peak_quads if dtype in INTEGERS else peak_gflops)(time.process_time, 1)


def seconds(weights: list[PackedMatrix], x: torch.Tensor) -> float:
    """Of a product, on average."""
    times = max(1, 64 // len(x))
    began = time.process_time()
    for _ in range(times):
        for weight in weights:
            weight.multiply(x)
    return (time.process_time() - began) / (times * len(weights))


def tell(shape: tuple[int, int], dtype: str, rows: list[int], turns: int) -> None:
    """Prints a line."""
    layers = max(2, min(8, AT_ONCE // (2 * shape[0] * shape[1])))
    weights = [packed(shape, dtype) for _ in range(layers)]
    computed = torch.bfloat16 if dtype in ("bfloat16", *INTEGERS) else torch.float32
    inputs = {count: torch.randn(count, shape[1]).to(computed) for count in rows}
    peaks, times = [], {count: list[float]() for count in rows}
    for _ in range(turns):
        peaks.append(peak_of(dtype))
        for count, x in inputs.items():
            times[count].append(seconds(weights, x))
    peak = statistics.median(peaks)
    shares = [2e-9 * n * shape[0] * shape[1] / statistics.median(times[n]) / peak for n in rows]
    cells = " | ".join(f"{share:.2f}" for share in shares)
    print(f"| {dtype} {shape[0]} x {shape[1]} | {peak:.0f} | {cells} |", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--dtypes", default="bfloat16", help="of bfloat16, float16, float32, int8, int4")
    parser.add_argument("--rows", default="32,128,256")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    select(options.cpu_kernels)
    from kernels.cpu.runtime.thread_pool import TEAM

    TEAM.set_threads(1)
    torch.set_num_threads(1)
    rows = [int(number) for number in options.rows.split(",")]
    print("| product | peak, GFLOP/s or GOP/s | " + " | ".join(f"{count} rows" for count in rows) + " |")
    print("| --- " * (2 + len(rows)) + "|")
    for name in options.dtypes.split(","):
        for shape in SHAPES:
            tell(shape, name, rows, options.turns)


if __name__ == "__main__":
    main()
