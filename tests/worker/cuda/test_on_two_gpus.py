"""Ranks that are processes: copies between their devices, and a rank that dies; with `-m gpu`, models on two
CUDA devices, which no GPU has run yet."""

import itertools
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.worker.cpu.test_rank_memory import on_each
from tests.worker.cuda.device_ranks import die, one_of_two
from tests.worker.fakes import Driver, initialize, resolved_params
from worker.cpu.rank_runner import _TIMES
from worker.load import load
from worker.loop import RankGone
from worker.platforms.cuda import CudaPlatform

Checkpoints = Callable[..., Path]
SMALL = {"device": "cuda", "block_size": 16, "num_blocks": 200, "gpu_memory_utilization": 0.5}
SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256}
NUMBERS = itertools.count()
"""Of groups."""


def test_copies_are_bitwise():
    """Of every dtype that ranks exchange, and of tensors that are not contiguous."""
    name, part = f"copies-{next(NUMBERS)}", torch.randn(5, 7)

    def work(rank: int) -> list[list[float]]:
        world = one_of_two(rank, name, os.getpid())
        own = part + rank
        found = [
            world.stacked(own.T),
            torch.stack(list(world.gather(own.bfloat16()))).float(),
            world.from_first(torch.arange(3) + 5 * rank),
            world.sum(own),
            torch.tensor([world.least(9 - rank)]),
            torch.from_numpy(world.tell(np.array([rank + 2]))),
        ]
        return [each.flatten().tolist() for each in found]

    both = torch.stack([part, part + 1])
    expected = [
        both.transpose(1, 2),
        both.bfloat16().float(),
        torch.arange(3),
        both[0] + both[1],
        torch.tensor([8]),
        torch.tensor([2]),
    ]
    assert on_each(work) == [[each.flatten().tolist() for each in expected]] * 2


def test_a_rank_that_dies_ends_the_copies_of_the_others():
    name = f"copies-{next(NUMBERS)}"
    other = multiprocessing.get_context("spawn").Process(target=die, args=(name, os.getpid()))
    other.start()
    world = one_of_two(0, name, os.getpid())
    assert world.stacked(torch.zeros(3)).tolist() == [[0.0] * 3, [1.0] * 3]
    with pytest.raises(RankGone, match="rank 1 of the worker is gone|has lost another one"):
        world.stacked(torch.zeros(3))
    other.join()


class Recorder:
    """Keeps plans, and what they gave but for times."""

    def __init__(self, execute: Callable[[worker_pb2.StepPlan], worker_pb2.StepResult]) -> None:
        self._execute, self.plans, self.results = execute, list[bytes](), list[bytes]()

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        self.plans.append(plan.SerializeToString())
        result = self._execute(plan)
        kept = worker_pb2.StepResult()
        kept.CopyFrom(result)
        for name in _TIMES:
            kept.ClearField(name)
        self.results.append(kept.SerializeToString(deterministic=True))
        return result


def repeat(rank: int, command: bytes, plans: list[bytes]) -> list[bytes]:
    """What a rank gives for the plans."""
    loaded, _ = load(worker_pb2.Initialize.FromString(command), CudaPlatform(WorkerConfig(rank=rank)))
    runner = Recorder(loaded.execute)
    for plan in plans:
        runner.execute(worker_pb2.StepPlan.FromString(plan))
    return runner.results


@pytest.mark.gpu
@pytest.mark.parametrize("group", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_two_devices_have_the_bits_of_one(group: dict[str, Any], checkpoint: Checkpoints):
    """By NCCL, in graphs that have its copies inside: tokens and log-probabilities."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there are fewer than two CUDA devices")
    compare(group, checkpoint("llama", **SHAPE))


def compare(group: dict[str, Any], folder: Path) -> None:
    """Fails unless two ranks give what one worker gives."""
    recorders = []

    def alone(command: worker_pb2.Initialize) -> tuple[Recorder, worker_pb2.Ready]:
        runner, ready = load(command, CudaPlatform(WorkerConfig()))
        recorders.append(Recorder(runner.execute))
        return recorders[0], ready

    driver = Driver(folder, budget=7, record=False, loader=alone, **SMALL)
    wants = LogprobOptions(top_n=3)
    driver.add([5, 100, 33, 210, 7, 8, 9, 9, 9, 250], 4, wants=wants, prompt_wants=wants)
    driver.add([7, 7, 8], 6, resolved_params(temperature=1.2, top_k=40, seed=7))
    driver.run()
    name = {"group_name": f"devices-{next(NUMBERS)}", "first_rank_pid": os.getpid()}
    command = initialize(folder, **SMALL, **group, **name).SerializeToString()
    arguments = 1, command, recorders[0].plans
    other = multiprocessing.get_context("spawn").Process(target=repeat, args=arguments)
    other.start()
    try:
        assert repeat(0, command, recorders[0].plans) == recorders[0].results
    finally:
        other.kill()
        other.join()
