"""benchmarks/gpu/steps.py drives the runner that it will measure: on the reference of a device."""

from pathlib import Path

import pytest

from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.steps import measure_all
from pagewire.internal.v1 import worker_pb2
from tests.worker.cuda.host_devices import interpret, load_on_the_host


def test_prefill_and_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Steps that are launched before the last one's tokens are known, rows that go and come again."""
    interpret(monkeypatch)
    monkeypatch.setattr("benchmarks.gpu.models.write_tokenizer", lambda *args: None)
    shape = SHAPES["tiny"]
    shape.write(tmp_path)
    command = worker_pb2.Initialize(
        model_path=str(tmp_path),
        load_format="dummy",
        max_num_seqs=2,
        max_num_batched_tokens=64,
        max_model_len=40,
        block_size=64,
        num_blocks=4,
    )
    runner, ready = load_on_the_host(command)
    rows = list(measure_all(runner, ready.num_blocks, shape, [20], [2], [9], steps=3))
    assert [kind for kind, _ in rows] == ["prefill", "decode"]
    assert all(row["ms"] > 0 for _, row in rows)
