"""Shows where the time of a step's forward pass goes on a CPU, operation by operation.

    python -m benchmarks.steps.cpu_step MODEL --batch 1,32 --prompt 128
    python -m benchmarks.steps.cpu_step MODEL --quantization int8
    python -m benchmarks.steps.cpu_step MODEL --batch 1 --prompt 8000 --kv-cache-dtype fp8_e4m3
    python -m benchmarks.steps.cpu_step MODEL --batch 32 --prompt 544 --shared 512

With --shared, rows have so many tokens of the prompt in the same blocks, and only decoding is measured.

The step's program (kernels.cpu.program) runs again and again with all records but those of one
operation emptied, so that each is measured with its own data, threads and waits; the median of the runs.
What the operations do not add up to is what they do to each other's caches. Attention waits for memory in its
own line; in a whole step products ask for its keys and values
(kernels.cpu.attention.planning.kv_prefetch_kernel), and the last line says what the step takes where they do
not, in turns with what it takes.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import numpy as np  # noqa: E402

from benchmarks.steps.plans import plan, removal  # noqa: E402
from benchmarks.steps.worker_step import BLOCK_SIZE, BUDGET, random_rows  # noqa: E402
from kernels.cpu.attention.planning.kv_prefetch import LEAST_ROWS  # noqa: E402
from kernels.cpu.program.buffers import FEW  # noqa: E402
from kernels.cpu.program.recording import STREAM  # noqa: E402
from kernels.cpu.runtime.records import ProductRecord  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.config import WorkerConfig  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.cpu.fused_decoder.decoder import FusedDecoder  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402
from worker.load import load  # noqa: E402
from worker.platforms.cpu import CpuPlatform  # noqa: E402

RUNS = 9
OPERATION, ROWS = ProductRecord.word("operation"), ProductRecord.word("rows")
COLUMNS, WORDS = ProductRecord.word("columns"), ProductRecord.word("words")


def names() -> dict[int, str]:
    """By address."""
    from kernels.cpu.attention import bfloat16_kv, combine_parts, e4m3_kv, float32_kv
    from kernels.cpu.attention.planning import kv_prefetch_list
    from kernels.cpu.elementwise import activations, gather, norms, rotary
    from kernels.cpu.matmul import gemm_bfloat16, gemm_float32, gemm_int8, packed_rows
    from kernels.cpu.matmul.compact import product as compact_product
    from kernels.cpu.matmul.groups import e2m1_product, inputs, product, two_level_product
    from kernels.cpu.sampling import argmax

    of_both_dtypes = {
        norms.rms_norm: "norms",
        norms.layer_norm: "norms",
        activations.activation: "activation",
        activations.gated_silu: "gated SiLU",
        rotary.rotary: "rotary",
    }
    return {
        **{int(one): name for both, name in of_both_dtypes.items() for one in both},
        gemm_bfloat16.linear_bfloat16: "product",
        gemm_int8.linear_int8: "product",
        gemm_float32.linear_float32: "product",
        compact_product.compact_linear: "product",
        compact_product.compact_rows: "embedding",
        packed_rows.packed_rows: "embedding",
        gather.gather_rows: "what is sampled from",
        gemm_int8.quantized_rows: "embedding",
        gemm_int8.quantize_rows: "inputs to int8",
        product.group_linear: "product",
        e2m1_product.e2m1_linear: "product",
        two_level_product.two_level_linear: "product",
        inputs.quantize_groups: "inputs to int8",
        bfloat16_kv.store_kv: "store",
        bfloat16_kv.attention_bfloat16: "attention",
        kv_prefetch_list.list_pieces: "what to prefetch",
        e4m3_kv.store_e4m3: "store",
        e4m3_kv.attention_of_e4m3: "attention",
        combine_parts.combine_parts: "attention, combining",
        float32_kv.store_kv_float32: "store",
        float32_kv.attention_float32: "attention",
        float32_kv.combine_parts_float32: "attention, combining",
        argmax.find_in_pieces: "greedy choice",
        argmax.merge_pieces: "greedy choice, merging",
    }


def label(record: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", known: dict[int, str]) -> str:
    """Products by their shape."""
    from kernels.cpu.matmul.gemm_float32 import linear_float32
    from kernels.cpu.matmul.gemm_int8 import linear_int8
    from kernels.cpu.matmul.groups.e2m1_product import e2m1_linear
    from kernels.cpu.matmul.groups.product import group_linear
    from kernels.cpu.matmul.groups.two_level_product import two_level_linear

    operation = int(record[OPERATION])
    if known[operation] != "product":
        return known[operation]
    in_eights = dict.fromkeys((group_linear, e2m1_linear, two_level_linear), 8)
    in_word = {**in_eights, linear_float32: 1, linear_int8: 4}.get(operation, 2)
    return f"product {record[COLUMNS]} x {record[WORDS] * in_word}"


def median_ms(run: Callable[[], None]) -> float:
    """Of some runs, after one that does not count."""
    run()
    return statistics.median(milliseconds(run) for _ in range(RUNS))


def milliseconds(run: Callable[[], None]) -> float:
    """Of one run."""
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


def with_and_without(
    run: Callable[[], None], records: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", products: list[int]
) -> str:
    """A line for what products ask for. records, products: of the program, and which of them these are."""
    streams = records[products, STREAM]
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * RUNS):
        records[products, STREAM] = streams * (1 - turn % 2)
        times[turn % 2].append(milliseconds(run))
    records[products, STREAM] = streams
    asked, not_asked = map(statistics.median, times)
    compared = f"in turns with {asked:.3f} ms: {asked / not_asked:.3f}"
    return f"  {'nothing asked for':<22} {not_asked:9.3f} ms, {compared}"


def profile(runner: StepExecutor[CpuBackend], what: str, tokens: int) -> None:
    """Of the step of so many tokens that has just run. Prints a line per operation."""
    from kernels.cpu.runtime.thread_pool import TEAM

    if not isinstance(runner.backend.model, FusedDecoder):
        raise SystemExit("this model does not run as a program: see the worker's log")
    program = runner.backend.model.programs[tokens <= FEW].program
    records, known = program.records, names()
    whole = records.copy()
    labels = [label(record, known) for record in whole]
    total = median_ms(lambda: TEAM.run(program))
    print(f"{what}: {total:.2f} ms")
    for name in dict.fromkeys(labels):
        chosen = np.array([one == name for one in labels])
        records[:] = whole
        records[~chosen, ROWS] = 0
        taken = median_ms(lambda: TEAM.run(program))
        line = f"  {name:<22} {taken:9.3f} ms {100 * taken / total:5.1f} %"
        if name.startswith("product"):
            columns, inputs = (int(part) for part in name.removeprefix("product ").split(" x "))
            done = 2e-6 * columns * inputs * int(whole[chosen, ROWS].sum()) / taken
            line += f"  {done:6.0f} GFLOP/s"
        print(line)
    records[:] = whole
    products = [index for index, name in enumerate(labels) if name.startswith("product")]
    if tokens >= LEAST_ROWS and whole[products, STREAM].any():
        print(with_and_without(lambda: TEAM.run(program), records, products))


def measure(runner: StepExecutor[CpuBackend], vocab_size: int, batch: int, prompt: int, shared: int) -> None:
    """A step that computes prompts, and one that decodes. shared: blocks that all rows begin with."""
    runner.execute(plan(range(batch), 0, prompt, random_rows(vocab_size, batch, prompt, prompt + 1, shared)))
    if not shared:
        profile(runner, f"{batch} prompts of {prompt} tokens", batch * prompt)
    runner.execute(plan(range(batch), prompt, 1))
    common = f", {shared * BLOCK_SIZE} of it in common" if shared else ""
    profile(runner, f"decode of {batch}, context {prompt + 1}{common}", batch)
    runner.execute(removal(range(batch)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--shared", type=int, default=0, help="of the prompt; a multiple of 16")
    parser.add_argument("--quantization", default="", choices=["", "int8", "int4"])
    parser.add_argument("--kv-cache-dtype", default="", choices=["", "fp8_e4m3"])
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    if options.shared % BLOCK_SIZE or not 0 <= options.shared < options.prompt:
        parser.error(f"--shared is {options.shared}: a multiple of {BLOCK_SIZE} below --prompt is shared")
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder(options.model)),
        device="cpu",
        dtype="bfloat16",
        load_format="auto" if list(Path(options.model).glob("*.safetensors")) else "dummy",
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_seqs=max(batches),
        max_num_batched_tokens=max(BUDGET, max(batches) * options.prompt),
        block_size=BLOCK_SIZE,
        num_blocks=max(batches) * -(-(options.prompt + 1) // BLOCK_SIZE),
    )
    runner, ready = load(initialize, CpuPlatform(WorkerConfig(threads=options.threads)))
    for batch in batches:
        measure(runner, ready.model.vocab_size, batch, options.prompt, options.shared // BLOCK_SIZE)


if __name__ == "__main__":
    main()
