"""Our CPU kernels against torch, in bfloat16: products of two models' shapes, and whole steps.

    python -m benchmarks.cpu_kernels                    # one thread, CPU time
    python -m benchmarks.cpu_kernels --threads 2        # wall time
    python -m benchmarks.cpu_kernels --cpu-kernels avx2 # another instruction set than the best one

With one thread, times are CPU time of the process: what else the machine does then shows less; and each
shape is preceded by what the core does at most (benchmarks/cpu_peaks.py). Torch and
our kernels take turns, and every figure is a median. Each product goes through as many weights as the
model has layers, so that they come from memory. Steps have random weights: time does not depend on them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import torch  # noqa: E402

from benchmarks.worker_step import BLOCK_SIZE, GREEDY, plan  # noqa: E402
from kernels.cpu.instruction_sets import select  # noqa: E402
from kernels.cpu.matmul.compact.weight import compact_weight  # noqa: E402
from kernels.cpu.matmul.matrix import PackedMatrix  # noqa: E402
from kernels.cpu.matmul.packed import pack_weight  # noqa: E402
from kernels.cpu.requirements import why_not  # noqa: E402
from kernels.ops.layers.linear import linear  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from pagewire.ipc.columns import pack_u32  # noqa: E402
from worker.cpu import kernel_selection as cpu_kernels  # noqa: E402
from worker.cpu.load import load  # noqa: E402

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}
MODELS = {
    "135M Llama": LLAMA
    | {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "Qwen2.5-0.5B": QWEN
    | {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}
COMMON = {
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "eos_token_id": 0,
}
TOKENS = (1, 4, 8, 32, 128)
PROMPT = 128

Clock = Callable[[], float]


def shapes(config: dict[str, int]) -> dict[str, tuple[int, int]]:
    """(N, K) of a layer's products."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    qkv = hidden // heads * (heads + 2 * config["num_key_value_heads"])
    inner = config["intermediate_size"]
    return {
        "qkv": (qkv, hidden),
        "output": (hidden, hidden),
        "gate-up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def in_turns(calls: tuple[Callable[[], None], ...], repeats: int, clock: Clock) -> list[float]:
    """Median seconds of each call; they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            began = clock()
            call()
            taken.append(clock() - began)
    return [statistics.median(taken) for taken in times]


def multiply(product: Callable[..., torch.Tensor], x: torch.Tensor, weights: Sequence[Any]) -> None:
    """By each weight in turn."""
    for weight in weights:
        product(x, weight)


def times(x: torch.Tensor, weight: PackedMatrix) -> torch.Tensor:
    """Returns the product."""
    return weight.multiply(x)


def print_peaks(clock: Clock) -> None:
    """Of one core, in the instruction set of the kernels."""
    from benchmarks.cpu_peaks import peak_gflops, peak_read  # compiles

    print(f"peaks: {peak_gflops(clock):.0f} GFLOP/s in float32, {peak_read(clock):.1f} GB/s", flush=True)


def products(name: str, repeats: int, clock: Clock) -> None:
    """Prints a line per shape and number of tokens."""
    config = MODELS[name]
    layers = int(config["num_hidden_layers"])
    for product, (rows, columns) in shapes(config).items():  # type: ignore[arg-type]
        if clock is time.process_time:
            print_peaks(clock)
        plain = [torch.randn(rows, columns).to(torch.bfloat16) for _ in range(layers)]
        packed = [pack_weight(weight, None) for weight in plain]
        narrow = [compact_weight(weight, None) for weight in plain]
        for tokens in TOKENS:
            x = torch.randn(tokens, columns).to(torch.bfloat16)
            calls = (
                partial(multiply, linear, x, plain),
                partial(multiply, times, x, packed),
                partial(multiply, times, x, narrow),
            )
            theirs, wide, ours = (t / layers for t in in_turns(calls, repeats, clock))
            microseconds = " | ".join(f"{1e6 * t:.0f} us" for t in (theirs, wide, ours))
            print(
                f"| {name} {product} {rows} x {columns} | {tokens} | {microseconds}"
                f" | {2e-9 * tokens * rows * columns / ours:.0f} GFLOP/s | {theirs / ours:.1f}"
                f" | {wide / ours:.2f} |",
                flush=True,
            )


class Steps:
    """A runner with random weights, and rows that all go through the same positions."""

    def __init__(self, name: str, batch: int, positions: int, threads: int) -> None:
        """batch: rows at most."""
        self.blocks, self.batch, self.position = -(-positions // BLOCK_SIZE), batch, 0
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODELS[name] | COMMON))
            initialize = worker_pb2.Initialize(
                model_path=folder,
                device="cpu",
                dtype="auto",
                load_format="dummy",
                max_num_seqs=batch,
                max_num_batched_tokens=8192,
                block_size=BLOCK_SIZE,
                num_blocks=batch * self.blocks,
            )
            self.runner = load(initialize, 0, threads, lambda what, fraction: None)[0]

    def start(self, batch: int) -> None:
        """The prompts of new rows."""
        self.batch, self.position = batch, PROMPT
        new_rows = [
            worker_pb2.NewRow(
                row=row,
                prompt_len=PROMPT,
                token_ids=pack_u32((row + 7 * i) % 4096 for i in range(PROMPT)),
                blocks=pack_u32(range(row * self.blocks, (row + 1) * self.blocks)),
                sampling=GREEDY,
            )
            for row in range(batch)
        ]
        self.runner.execute(plan(range(batch), 0, PROMPT, new_rows))

    def step(self) -> None:
        """One token more for every row."""
        self.runner.execute(plan(range(self.batch), self.position, 1, []))
        self.position += 1

    def end(self) -> None:
        """Of the rows."""
        self.runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32(range(self.batch))))


def steps(name: str, batches: list[int], threads: int, repeats: int, clock: Clock) -> None:
    """Prints two lines per batch size: prefill of all prompts, and the decode steps after it."""
    positions = PROMPT + repeats
    ours = Steps(name, max(batches), positions, threads)
    cpu_kernels.why_not = lambda: "a comparison"
    theirs = Steps(name, max(batches), positions, threads)
    for batch in batches:
        prefill = in_turns((partial(theirs.start, batch), partial(ours.start, batch)), 1, clock)
        decode = in_turns((theirs.step, ours.step), repeats, clock)
        theirs.end()
        ours.end()
        for what, (before, after) in (("prefill", prefill), ("decode", decode)):
            ratio = f"{before / after:.1f}"
            print(
                f"| {name} {what}, batch {batch} | {1e3 * before:.1f} ms | {1e3 * after:.1f} ms | {ratio} |"
            )
    cpu_kernels.why_not = why_not


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch", default="1,32")
    options = parser.parse_args()
    select(options.cpu_kernels)
    missing = why_not()
    if missing is not None:
        parser.exit(1, f"our CPU kernels cannot run: {missing}\n")
    from kernels.cpu.runtime.thread_pool import TEAM

    torch.set_num_threads(options.threads)
    TEAM.set_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    with torch.inference_mode():
        for name in options.models.split(","):
            products(name, options.repeats, clock)
            batches = [int(batch) for batch in options.batch.split(",")]
            steps(name, batches, options.threads, options.repeats, clock)


if __name__ == "__main__":
    main()
