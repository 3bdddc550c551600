"""A whole worker: from Initialize to results, on sockets."""

import numpy as np
import pytest

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from tests.worker.cuda.host_devices import host_device, interpret
from tests.worker.fakes import initialize
from tests.worker.test_main import Checkpoints, Core, WorkerThread, core, one_step
from worker.cuda.device import HostDevice
from worker.platforms import cuda

__all__ = ["core"]

SIZES = {"max_num_seqs": 1, "max_num_batched_tokens": 3, "num_blocks": 2, "block_size": 16}


def test_a_conversation(core: Core, checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """--device cuda leads to the runner of worker.cuda, which says what it found and answers plans that come
    faster than it does, in their order."""

    def device(rank: int, ranks: int) -> HostDevice:
        np.seterr(all="ignore")  # of the worker's thread: see arithmetic_of_a_gpu
        return host_device()

    interpret(monkeypatch)
    monkeypatch.setattr(cuda, "find_device", device)
    worker = WorkerThread(core.address)
    core.receive()
    folder = checkpoint("llama", num_hidden_layers=1, max_position_embeddings=16)
    core.send(initialize=initialize(folder, device="cuda", enforce_eager=True, **SIZES))
    ready = core.receive_after_progress().ready
    assert (ready.num_blocks, ready.num_threads, ready.model.max_model_len) == (2, 0, 16)
    assert ready.device == "cpu"
    core.send(step_plan=one_step(41))
    core.send(step_plan=worker_pb2.StepPlan(step=42, removed_rows=one_step(0).rows))
    core.send(step_plan=one_step(43))
    results = [core.receive().step_result for _ in range(3)]
    assert [result.step for result in results] == [41, 42, 43]
    assert unpack_u32(results[0].token_ids) == unpack_u32(results[2].token_ids) != []
    core.send(shutdown=worker_pb2.Shutdown())
    assert worker.join() == 0
