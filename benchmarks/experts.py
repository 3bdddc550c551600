"""Measures how near a mixture of experts decodes to a dense model that reads as many bytes.

    python -m benchmarks.experts                    # 4 layers of M3 (benchmarks/models.py), one row
    python -m benchmarks.experts --layers 16 --quantization int8
    python -m benchmarks.experts --threads 1 --processor-time      # on a machine that others use too

Weights are drawn at random. A step of one row reads the chosen experts of each layer, and all other weights.
Its twin is the same decoder with one feed-forward part as large as the chosen experts together. Steps of both
are taken in turns, so that both have the same load beside them; the share is the twin's time by the step's,
of their medians. docs/performance.md has the share of the memory's bandwidth that dense models reach.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

from transformers import PretrainedConfig, Qwen3Config  # noqa: E402

from benchmarks.models import configs  # noqa: E402
from benchmarks.worker_step import BLOCK_SIZE, BUDGET, plan, random_rows  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.cpu.fused_decoder.decoder import FusedDecoder  # noqa: E402
from worker.cpu.load import load  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402
from worker.layers.experts.experts import Experts  # noqa: E402
from worker.startup.model import model_bytes  # noqa: E402

PROMPT, STEPS = 32, 60
Runner = StepExecutor[CpuBackend]
Clock = Callable[[], float]


def bytes_of_step(model: FusedDecoder) -> int:
    """Of the weights that a step of one row reads. The embedding is the head too."""
    total = model_bytes(model)
    for layer in model.modules():
        if isinstance(layer, Experts):
            held = layer.expert_gate_up.nbytes + layer.expert_down.nbytes
            routing = layer.router.routing
            total -= held * (routing.num_experts - routing.top_k) // routing.num_experts
    return total


def load_dummy(config: PretrainedConfig, threads: int, quantization: str) -> Runner:
    """With weights drawn at random."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        initialize = worker_pb2.Initialize(
            model_path=str(Path(folder)),
            device="cpu",
            dtype="auto",
            load_format="dummy",
            quantization=quantization,
            max_num_seqs=1,
            max_num_batched_tokens=BUDGET,
            block_size=BLOCK_SIZE,
            num_blocks=-(-(PROMPT + STEPS) // BLOCK_SIZE),
        )
        return load(initialize, 0, threads, lambda what, fraction: None)[0]


def twins(layers: int) -> tuple[PretrainedConfig, PretrainedConfig]:
    """M3 with so many layers, and the dense decoder."""
    sparse = configs()["M3"]
    values = {"num_hidden_layers": layers, "dtype": "bfloat16"}
    sparse.update(values | {"architectures": ["Qwen3MoeForCausalLM"]})
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    shape = {name: getattr(sparse, name) for name in (*names, "tie_word_embeddings")}
    inner = sparse.moe_intermediate_size * sparse.num_experts_per_tok
    return sparse, Qwen3Config(**values, **shape, intermediate_size=inner, architectures=["Qwen3ForCausalLM"])


def timed(runner: Runner, step: worker_pb2.StepPlan, clock: Clock) -> float:
    """Milliseconds."""
    began = clock()
    runner.execute(step)
    return 1000 * (clock() - began)


def measure(runners: Sequence[Runner], vocab_size: int, clock: Clock) -> None:
    """Prints a line for each, and the share."""
    times: list[list[float]] = [[] for _ in runners]
    for runner in runners:
        runner.execute(plan(range(1), 0, PROMPT, random_rows(vocab_size, 1, PROMPT, PROMPT + STEPS)))
    for step in range(STEPS - 1):
        for runner, taken in zip(runners, times, strict=True):
            taken.append(timed(runner, plan(range(1), PROMPT + step, 1, []), clock))
    medians = [statistics.median(taken) for taken in times]
    for what, runner, median in zip(("experts", "dense twin"), runners, medians, strict=True):
        model = runner.backend.model
        assert isinstance(model, FusedDecoder)
        read = bytes_of_step(model)
        print(f"{what:10}: {median:7.2f} ms for {read / 1e6:.0f} MB, {read / median / 1e6:.1f} GB/s")
    print(f"experts decode at {100 * medians[1] / medians[0]:.0f} % of the twin's speed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quantization", default="", choices=["", "int8", "int4"])
    parser.add_argument(
        "--processor-time", action="store_true", help="of this process, in place of the clock's"
    )
    options = parser.parse_args()
    pair = twins(options.layers)
    runners = [load_dummy(config, options.threads, options.quantization) for config in pair]
    clock = time.process_time if options.processor_time else time.perf_counter
    measure(runners, pair[0].vocab_size, clock)


if __name__ == "__main__":
    main()
