"""benchmarks/gpu/serve.py on a CPU: what it counts, drives and prints. On a GPU it has not run where this
is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import serve as gpu_serve
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.serve import Plan, measure, order, run_part, table
from benchmarks.gpu.steps import Steps, load_runner, measure_all
from benchmarks.gpu.transformers import make_model, run_continuous, run_static
from benchmarks.gpu.transformers import measure as measure_peer
from pagewire_bench.workloads import Request
from worker.families.registry import read_model_config
from worker.models.registry import FAMILIES
from worker.parallel import Placement

ROOT = Path(__file__).parents[2]
TINY = SHAPES["tiny"]


@pytest.mark.parametrize("name", SHAPES)
def test_bytes_of_a_step_are_those_of_the_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Our own model, made of the same config.json without memory: its matrices, with the head once, without
    the lookup, and of experts those that rows have; and what it keeps of a token."""
    monkeypatch.setattr("benchmarks.gpu.models.write_tokenizer", lambda *args: None)
    shape = SHAPES[name]
    shape.write(tmp_path)
    config = read_model_config(tmp_path)
    place = Placement(torch.float32, torch.device("meta"))
    model = FAMILIES[config.architecture].build(config, place)
    matrices = {id(p): p.numel() for p in model.parameters() if p.dim() == 2}
    lookup = 0 if shape.tied else shape.vocab * shape.hidden
    all_rows = 10**6  # with so many some row has each expert
    assert shape.parameters_read(all_rows) == pytest.approx(sum(matrices.values()) - lookup, rel=1e-12)
    assert shape.parameters_read(1) == shape.parameters
    assert shape.kv_bytes == config.num_layers * config.kv_values * shape.value_bytes
    assert shape.decode_bytes(3, 10) == shape.parameters_read(3) * shape.value_bytes + 30 * shape.kv_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tiny model."""
    path = tmp_path_factory.mktemp("tiny")
    TINY.write(path)
    return path


def test_steps(folder: Path):
    """Prompts and decoding, through the runner that serves; a batch for which the cache has no room says
    so."""
    runner, num_blocks = load_runner(folder, "cpu", batch=3, context=60)
    rows = list(measure_all(runner, num_blocks, TINY, [24], [1, 3], [16], steps=4))
    assert [kind for kind, _ in rows] == ["prefill", "decode", "decode"]
    assert rows[0][1]["tokens"] == 24 and rows[0][1]["flops_per_s"] > 0
    assert [(row["batch"], row["context"]) for _, row in rows[1:]] == [(1, 16), (3, 16)]
    assert rows[2][1]["bytes"] == TINY.decode_bytes(3, 16 + 3)
    ((_, missing),) = measure_all(runner, 2, TINY, [], [3], [16], steps=4)
    assert missing["missing"] == "3 KV blocks are needed, 2 are there"


def test_one_step_is_launched_behind_the_one_that_is_waited_for():
    """As the core does it; as many results as steps, and rows end where they were told to."""
    events = []
    runner = SimpleNamespace(
        launch=lambda plan: events.append(("launch", plan.starts[:4])), finish=lambda: events.append("finish")
    )
    steps = Steps(runner, 100, 2, 9000, 10)  # one row to a step of 8192 at most
    steps.prefill()
    assert [event if event == "finish" else "launch" for event in events] == ["launch"] * 2 + ["finish"] * 2
    events.clear()
    assert len(steps.decode(3)) == 3
    starts = [int.from_bytes(event[1], "little") for event in events if event != "finish"]
    assert starts == [9000, 9001, 9002]
    kinds = ["finish" if event == "finish" else "launch" for event in events]
    assert kinds == ["launch", "launch", "finish", "launch", "finish", "finish"]


def test_transformers_gives_as_many_tokens_as_we_do(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Static: for real. Its continuous batching takes half a minute to begin on a CPU, and is replaced."""
    model = make_model(folder, "cpu")
    requests = [Request(list(range(16, 16 + 9)), 5), Request(list(range(20, 20 + 9)), 5)]
    assert run_static(model, requests, compile_it=False) == 10
    called = []

    def generate_batch(model, prompts, config, progress_bar):
        called.append((prompts, config.max_new_tokens, config.min_new_tokens, config.do_sample))
        return {str(i): SimpleNamespace(generated_tokens=[1] * 5) for i in range(len(prompts))}

    monkeypatch.setattr(type(model), "generate_batch", generate_batch)
    assert run_continuous(model, requests) == 10
    assert called == [([request.prompt for request in requests], 5, 5, False)]
    with pytest.raises(RuntimeError, match="asked transformers for 128 tokens, got 7"):
        measure_peer(lambda requests: 7, "single", 512, 600)


def test_parts_that_fail_cost_nothing_but_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first model comes first with all of its parts; one that ends badly keeps what it had written."""
    assert order(["a", "b"], ["x", "y"]) == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert order(["a", "b", "c"], ["x"]) == [("a", "x"), ("b", "x"), ("c", "x")]
    write = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"rows\": 1}'); "
    output = tmp_path / "figures.json"
    command = [sys.executable, "-c", write + "print('no memory', file=sys.stderr); sys.exit(3)", str(output)]
    assert run_part(command, output, 30) == ({"rows": 1}, "exit code 3: no memory")
    hangs = [sys.executable, "-c", write + "import time; time.sleep(60)", str(output)]
    assert run_part(hangs, output, 1.0) == ({"rows": 1}, "not done in 1 s")
    nothing = [sys.executable, "-c", "pass"]
    assert run_part(nothing, tmp_path / "none", 30) == ({}, "it wrote no figures")

    monkeypatch.setattr(gpu_serve, "run_part", lambda command, output, limit: ({"command": command}, None))
    figures, missing = measure(Plan("cpu", 100), ["tiny"], ["steps", "service", "static"], lambda text: None)
    assert missing == [] and list(figures["tiny"]) == ["steps", "service", "static"]
    service = figures["tiny"]["service"]["command"]
    assert (
        service[1:3] == ["-m", "benchmarks.service.serve"]
        and "--load-format=dummy" in service[service.index("--") :]
    )
    figures, missing = measure(Plan("cpu", 20), ["tiny"], ["steps"], lambda text: None)
    assert figures == {"tiny": {}} and missing == ["tiny steps: the time was over"]


def test_table():
    """Ratios are ours to theirs; the best of transformers is what counts; what is missing stays empty."""
    decode = {"batch": 1, "context": 9, "ms": 2.0, "bytes": 1e9, "tokens_per_s": 500.0}
    steps = {
        "bandwidth": 1e12,
        "flops_per_s": 1e13,
        "decode": [decode, {"batch": 4, "context": 9, "missing": "no room"}],
        "prefill": [{"tokens": 8, "ms": 1.0, "flops_per_s": 5e12}],
    }
    service = {
        "workloads": {name: {"tokens_per_s": {"median": 300.0}} for name in ("single", "long")},
        "breakdowns": {"long": [{"parts": {"between steps": 1.25}}]},
    }
    peers = {
        part: {"workloads": {"single": {"tokens_per_s": rate}}}
        for part, rate in (("static", 100.0), ("continuous", 60.0))
    }
    assert table({"m": {"steps": steps, "service": service, **peers}})[2:] == [
        "| m | decode, 1 x 9 | 2.00 ms, 500 tokens/s | 1.00 ms: its bytes | 2.00 |",
        "| m | decode, 4 x 9 | - | no room |  |",
        "| m | prompt of 8 | 5.0 TFLOP/s, 1.0 ms | 10.0 TFLOP/s: a product | 0.50 |",
        "| m | service, single | 300 tokens/s | 100 tokens/s: transformers, static | 3.00 |",
        "| m | service, long | 300 tokens/s, 1.2% between steps |  |  |",
    ]


def test_the_command(tmp_path: Path):
    """One part of it, for real; and the refusal where there is no device."""
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.gpu.serve", f"--json={file}"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [*command, "--tiny", "--parts=steps"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "| tiny | decode, 3 x 40 |" in run.stdout and "missing" not in run.stdout
    assert len(json.loads(file.read_text())["figures"]["tiny"]["steps"]["decode"]) == 4
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and "no CUDA device" in run.stderr
