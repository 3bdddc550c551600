"""Products with weights in 16 and in 12 bits, in turns: how much faster those in 12 are.

    python -m benchmarks.compact_weights                                       # CPU time of one thread
    python -m benchmarks.compact_weights --cpu-kernels avx2 --rows 1,8,32
    python -m benchmarks.compact_weights --threads 2                           # wall time, on a quiet machine

Each line is a shape and a number of rows: microseconds of a product in both forms, and the ratio. A product
of one form is followed by one of the other, with weights that come from memory; of all turns it is the lower
quartile, for what else the machine does only adds to it. The last lines are a layer. An instruction set that
has no weights in 12 bits compares a form with itself.
"""

import argparse
import time

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from benchmarks.cpu_kernels import MODELS, shapes  # noqa: E402
from kernels.cpu.instruction_sets import select  # noqa: E402
from kernels.cpu.matmul.compact.weight import compact_weight  # noqa: E402
from kernels.cpu.matmul.matrix import PackedMatrix  # noqa: E402
from kernels.cpu.matmul.packed import pack_weight  # noqa: E402

LEAST_BYTES = 50 << 20
"""Of the weights of a shape: more than caches hold."""


def forms(shape: tuple[int, int]) -> list[tuple[PackedMatrix, PackedMatrix]]:
    """Weights in 16 and in 12 bits."""
    count = max(5, LEAST_BYTES // (2 * shape[0] * shape[1]))
    weights = [(0.02 * torch.randn(shape)).bfloat16() for _ in range(count)]
    return [(pack_weight(weight, None), compact_weight(weight, None)) for weight in weights]


def quartiles(pairs: list[tuple[PackedMatrix, PackedMatrix]], rows: int, turns: int) -> list[float]:
    """Seconds of a product in each form."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: list[list[float]] = [[], []]
    x = torch.randn(rows, pairs[0][0].in_features).bfloat16()
    for turn in range(turns * len(pairs)):
        for form in (0, 1) if turn % 2 else (1, 0):
            weight = pairs[(turn + form * len(pairs) // 2) % len(pairs)][form]
            began = clock()
            weight.multiply(x)
            times[form].append(clock() - began)
    return [sorted(taken)[len(taken) // 4] for taken in times]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--model", choices=list(MODELS), default="Qwen2.5-0.5B")
    parser.add_argument("--rows", default="1,2,4,8,16,32,128")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    select(options.cpu_kernels)
    from kernels.cpu.runtime.thread_pool import TEAM

    TEAM.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    numbers = [int(number) for number in options.rows.split(",")]
    totals = {rows: [0.0, 0.0] for rows in numbers}
    for name, shape in shapes(MODELS[options.model]).items():  # type: ignore[arg-type]
        pairs = forms(shape)
        for rows in numbers:
            wide, narrow = quartiles(pairs, rows, max(2, options.turns * 8 // (rows + 4)))
            totals[rows] = [totals[rows][0] + wide, totals[rows][1] + narrow]
            line = f"{name} {shape[0]} x {shape[1]} | {rows} | {1e6 * wide:.0f} | {1e6 * narrow:.0f}"
            print(f"| {line} | {wide / narrow:.2f} |", flush=True)
    for rows, (wide, narrow) in totals.items():
        print(f"| layer | {rows} | {1e6 * wide:.0f} | {1e6 * narrow:.0f} | {wide / narrow:.2f} |")


if __name__ == "__main__":
    main()
