"""What only a GPU can show: its tokens, its graphs, that nothing waits, and that nothing is compiled late."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from tests.worker.fakes import Driver, initialize, resolved_params
from tests.worker.test_parity import prompts, reference
from worker.cuda.backend import CudaBackend
from worker.cuda.device import CudaDevice
from worker.cuda.startup.warm_up import CompileWatch
from worker.executor.executor import StepExecutor
from worker.load import load
from worker.platforms.cuda import CudaPlatform

pytestmark = pytest.mark.gpu

Checkpoints = Callable[..., Path]
SMALL = {"device": "cuda", "block_size": 16, "num_blocks": 200, "gpu_memory_utilization": 0.5}


def on_a_gpu(command: worker_pb2.Initialize) -> tuple[StepExecutor[CudaBackend], worker_pb2.Ready]:
    """A tests.worker.fakes.Loader."""
    return load(command, CudaPlatform(WorkerConfig()))


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Whatever would wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "opt", "gpt2"])
def test_tokens_of_transformers(family: str, eager: bool, checkpoint: Checkpoints):
    """float32; prompts in odd pieces, decoding rows beside them. Nothing is compiled after the start."""
    folder = checkpoint(family)
    inputs = prompts(20)
    expected = reference(folder, inputs, 12)
    driver = Driver(folder, budget=37, record=False, loader=on_a_gpu, enforce_eager=eager, **SMALL)
    watch = CompileWatch()
    watch.serving()
    sequences = [driver.add(prompt, 12)[0] for prompt in inputs]
    driver.run()
    assert [sequence.output for sequence in sequences] == [tokens for tokens, _ in expected]
    assert watch.late == []


def test_a_launch_does_not_wait(checkpoint: Checkpoints):
    """Rows that begin, decode, fork, sample in any way and end: the host hears of the device in finish()
    alone. Steps are launched one ahead."""
    driver = Driver(checkpoint("llama"), budget=64, record=False, loader=on_a_gpu, **SMALL)
    runner = driver.runner
    assert isinstance(runner, StepExecutor) and isinstance(runner.backend, CudaBackend)
    launch = runner.launch

    def watched(plan: worker_pb2.StepPlan) -> None:
        with nothing_waits():
            launch(plan)

    runner.launch = watched  # type: ignore[method-assign]
    rng = random.Random(2)
    choices = [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9}, {"repetition_penalty": 1.2}]
    for _ in range(30):
        if len(driver.free_rows) > 3:
            driver.add(
                [5] * rng.randint(1, 15), 9, resolved_params(**rng.choice(choices)), n=rng.choice([1, 3])
            )
        driver.step()
    driver.run()


def test_blocks_fill_the_memory_that_they_may(checkpoint: Checkpoints):
    """A profile with the demo's shape leaves nearly all of it; what serving takes later fits beside them."""
    command = initialize(checkpoint("llama"), **(SMALL | {"num_blocks": 0, "max_num_batched_tokens": 2048}))
    before = CudaDevice().memory()
    runner, ready = on_a_gpu(command)
    after = CudaDevice().memory()
    assert ready.num_blocks > 1000
    assert after.free >= before.free - 0.5 * before.total
    assert runner.seconds_left() is None
