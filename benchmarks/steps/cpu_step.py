"""Shows where the time of a step's forward pass goes on a CPU, operation by operation.

    python -m benchmarks.steps.cpu_step MODEL --batch 1,32 --prompt 128
    python -m benchmarks.steps.cpu_step MODEL --quantization int8
    python -m benchmarks.steps.cpu_step MODEL --batch 1 --prompt 8000 --kv-cache-dtype fp8_e4m3
    python -m benchmarks.steps.cpu_step MODEL --batch 32 --prompt 544 --shared 512
    python -m benchmarks.steps.cpu_step ENCODER --batch 64 --prompt 256 --dtype float32

Rows of an encoder pool, and only their prompts are measured. With --shared, rows have so many tokens of the
prompt in the same blocks, and only decoding is measured.

The step's program (kernels.cpu.program) runs again and again with all records but those of one
operation emptied, so that each is measured with its own data, threads and waits; the median of the runs.
What the operations do not add up to is what they do to each other's caches. Attention waits for memory in its
own line; in a whole step products ask for its keys and values
(kernels.cpu.attention.planning.kv_prefetch_kernel). Of one row the last line is a read of as many bytes as
its weights have, beside the step: the least processor time of both, in turns.
"""

import statistics
import sys
from collections.abc import Callable
from time import process_time
from timeit import Timer, repeat

import numpy as np

from benchmarks.steps.cpu_worker import BLOCK_SIZE, Runner, load_model, model_options, random_rows
from benchmarks.steps.plans import plan, removal
from benchmarks.versus.roof import reading
from kernels.cpu.compiler.records import Operation
from kernels.cpu.program.buffers import FEW
from kernels.cpu.runtime.records import ProductRecord, ProgramRecord
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_MEAN, ModelFacts
from worker.cpu.fused_decoder.decoder import FusedDecoder

RUNS = 9
OPERATION, ROWS = ProductRecord.word("operation"), ProductRecord.word("rows")
COLUMNS, WORDS = ProductRecord.word("columns"), ProductRecord.word("words")
GRAIN = ProgramRecord.word("grain")


def names() -> dict[int, str]:
    """Returns the names of all operations by their addresses: module of kernels.cpu, and function."""
    loaded = [vars(module) for name, module in sys.modules.items() if name.startswith("kernels.cpu.")]
    values = [value for each in loaded for value in each.values()]
    of_both_dtypes = [one for value in values if isinstance(value, tuple) for one in value]
    operations = [one for one in values + of_both_dtypes if isinstance(one, Operation)]
    return {int(one): one.name.removeprefix("kernels.cpu.") for one in operations}


def label(record: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", known: dict[int, str]) -> str:
    """Products by their shape."""
    name = known[int(record[OPERATION])]
    if record[GRAIN] & 0xFFFFFFFF:  # the other half of the word is another field
        return name
    in_words = {"integers": 8, "e2m1": 8, "two_levels": 8, "float32": 1, "int8": 4}
    return f"product {record[COLUMNS]} x {record[WORDS] * in_words.get(name.partition('strips_')[2], 2)}"


def median_ms(run: Callable[[], None]) -> float:
    """Of some runs, after one that does not count."""
    return 1000 * statistics.median(repeat(run, number=1, repeat=RUNS + 1)[1:])


def profile(runner: Runner, what: str, tokens: int) -> None:
    """Of the step of so many tokens that has just run. Prints a line per operation."""
    from kernels.cpu.runtime.thread_pool import TEAM

    if not isinstance(runner.backend.model, FusedDecoder):
        raise SystemExit("this model does not run as a program: see the worker's log")
    program = runner.backend.model.programs[tokens <= FEW].program
    records, whole, known = program.records, program.records.copy(), names()
    labels = [label(record, known) for record in whole]
    total = median_ms(lambda: TEAM.run(program))
    print(f"{what}: {total:.2f} ms")
    size = 0
    for name in dict.fromkeys(one for one, rows in zip(labels, whole[:, ROWS], strict=True) if rows):
        chosen = np.array([one == name for one in labels])
        records[:] = whole
        records[~chosen, ROWS] = 0
        taken = median_ms(lambda: TEAM.run(program))
        line = f"  {name:<40} {taken:9.3f} ms {100 * taken / total:5.1f} %"
        if name.startswith("product"):
            columns, inputs = (int(part) for part in name.removeprefix("product ").split(" x "))
            done = 2e-6 * columns * inputs * int(whole[chosen, ROWS].sum()) / taken
            line += f"  {done:6.0f} GFLOP/s"
            bits = 12 if "compact" in known[int(whole[chosen, OPERATION][0])] else 16
            size += bits // 4 * columns * int(whole[chosen, WORDS].sum())
        print(line)
    records[:] = whole
    if tokens == 1:
        timed = (lambda: TEAM.run(program)), reading(size, TEAM.threads)
        times = [[Timer(run, timer=process_time).timeit(1) for run in timed] for _ in range(2 * RUNS)]
        step, read = 1000 * np.min(times, 0)
        print(f"  {'a read of as much':<40} {read:9.3f} ms of processors, {read / step:.0%} of {step:.3f} ms")


def measure(runner: Runner, model: ModelFacts, batch: int, prompt: int, shared: int) -> None:
    """A step that computes prompts, and one that decodes unless the model is an encoder. shared: blocks that
    all rows begin with."""
    rows = random_rows(model.vocab_size, batch, prompt, prompt + 1, shared)
    for row in rows if model.whole_prompts else ():
        row.pooling.type = POOLING_TYPE_MEAN
    runner.execute(plan(range(batch), 0, prompt, rows))
    if not shared:
        profile(runner, f"{batch} prompts of {prompt} tokens", batch * prompt)
    if not model.whole_prompts:
        runner.execute(plan(range(batch), prompt, 1))
        common = f", {shared * BLOCK_SIZE} of it in common" if shared else ""
        profile(runner, f"decode of {batch}, context {prompt + 1}{common}", batch)
    runner.execute(removal(range(batch)))


def main() -> None:
    parser = model_options(__doc__)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--shared", type=int, default=0, help="of the prompt; a multiple of 16")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    if options.shared % BLOCK_SIZE or not 0 <= options.shared < options.prompt:
        parser.error(f"--shared is {options.shared}: a multiple of {BLOCK_SIZE} below --prompt is shared")
    num_blocks = max(batches) * -(-(options.prompt + 1) // BLOCK_SIZE)
    runner, ready = load_model(options, max(batches), num_blocks, max(batches) * options.prompt)
    for batch in batches:
        measure(runner, ready.model, batch, options.prompt, options.shared // BLOCK_SIZE)


if __name__ == "__main__":
    main()
