"""Products of few and many rows with weights in 12, 8 and 4 bits side by side: a layer of a 135M Llama.

    python -m benchmarks.cpu_forms                              # CPU time of one thread
    python -m benchmarks.cpu_forms --cpu-kernels avx512_bf16    # another instruction set than the best one

All forms and numbers of rows take turns, each with the weights of some layers, so that these come from memory
or a large cache; inputs are rounded where the form needs that. A figure is the median of the turns, of all
products of a layer. CPU time shows less of what else the machine does than wall time; only ratios of one run
count.
"""

import argparse
import statistics
import time

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from kernels.cpu.instruction_sets import select  # noqa: E402
from kernels.cpu.matmul.int8 import quantize_weight  # noqa: E402
from kernels.cpu.matmul.matrix import PackedMatrix  # noqa: E402
from kernels.cpu.weight_forms import exact_weight, weight_forms  # noqa: E402

SHAPES = (960, 576), (576, 576), (3072, 576), (576, 1536)
"""(N, K)."""
LAYERS = 8


def forms(shape: tuple[int, int]) -> dict[str, list[PackedMatrix]]:
    """A weight of each layer, by form."""
    weights = [(0.02 * torch.randn(shape)).bfloat16() for _ in range(LAYERS)]
    return {
        "exact": [exact_weight(weight.clone(), None) for weight in weights],
        "int8": [quantize_weight(weight, None) for weight in weights],
        "int4": [weight_forms("int4").matrix(weight, None, None) for weight in weights],
    }


def microseconds(weights: list[PackedMatrix], x: torch.Tensor) -> float:
    """Of a product, on average."""
    began = time.process_time()
    for weight in weights:
        weight.multiply(x)
    return 1e6 * (time.process_time() - began) / len(weights)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--rows", default="1,2,4,8,32,128")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    select(options.cpu_kernels)
    from kernels.cpu.runtime.thread_pool import TEAM

    TEAM.set_threads(1)
    torch.set_num_threads(1)
    numbers = [int(number) for number in options.rows.split(",")]
    totals: dict[tuple[str, int], float] = {}
    for shape in SHAPES:
        by_form, times = forms(shape), dict[tuple[str, int], list[float]]()
        inputs = {rows: torch.randn(rows, shape[1]).bfloat16() for rows in numbers}
        for _ in range(options.turns):
            for rows, x in inputs.items():
                for name, weights in by_form.items():
                    times.setdefault((name, rows), []).append(microseconds(weights, x))
        for key, taken in times.items():
            totals[key] = totals.get(key, 0.0) + statistics.median(taken)
    print("| form | " + " | ".join(f"{rows} rows" for rows in numbers) + " |")
    print("| --- " * (1 + len(numbers)) + "|")
    for name in by_form:
        print(f"| {name} | " + " | ".join(f"{totals[name, rows]:.0f} us" for rows in numbers) + " |")


if __name__ == "__main__":
    main()
