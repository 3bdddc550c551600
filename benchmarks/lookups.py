"""What --speculate lookup costs a step in which nothing repeats: microseconds of the worker, by rows.

    python -m benchmarks.lookups --rows 1,4,7

Rows of random tokens get one more in each step, as a model of random weights samples them at temperature 1;
the worker then looks for what it would draft. From --speculate's `batch` rows on it does not look. Medians.
"""

import argparse
import statistics
import time

import numpy as np

from pagewire.speculation import Speculation
from worker.speculation.lookup import LookupDrafter
from worker.speculation.speculator import Speculator
from worker.step.rows import RowTable

PROMPT, VOCAB_SIZE, BLOCK_SIZE = 100, 49_152, 16


def microseconds(num_rows: int, steps: int) -> float:
    """Of a step."""
    draw, index = np.random.default_rng(0), np.arange(num_rows)
    rows = RowTable(num_rows, PROMPT + steps + 1, VOCAB_SIZE, BLOCK_SIZE, 1)
    rows.token_ids[:, :PROMPT] = draw.integers(0, VOCAB_SIZE, (num_rows, PROMPT))
    rows.num_tokens[:] = PROMPT
    speculator = Speculator(Speculation("lookup").on("cpu"), [(1, LookupDrafter(rows))], rows)
    speculator.next_counts(index)
    times = []
    for tokens in draw.integers(0, VOCAB_SIZE, (steps, num_rows)):
        rows.append(index, tokens)
        began = time.perf_counter()
        speculator.next_counts(index)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="1,4,7,8")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    for rows in map(int, options.rows.split(",")):
        print(f"{rows:3} rows: {microseconds(rows, options.steps):6.1f} us")


if __name__ == "__main__":
    main()
