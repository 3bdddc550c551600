"""benchmarks/gpu/steps.py on a CPU: what it counts, drives and prints. On a GPU it has not run where this
is."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.steps import Steps, load_runner, main, measure_all, table
from worker.families.registry import read_model_config
from worker.models.registry import FAMILIES
from worker.parallel import Placement

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
    lookup = 0 if shape.config["tie_word_embeddings"] else shape.vocab * shape.config["hidden_size"]
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


def test_table():
    """Ratios are ours to the device's; what is missing is named."""
    decode = {"batch": 1, "context": 9, "ms": 2.0, "bytes": 1e9, "tokens_per_s": 500.0}
    steps = {
        "bandwidth": 1e12,
        "flops_per_s": 1e13,
        "decode": [decode, {"batch": 4, "context": 9, "missing": "no room"}],
        "prefill": [{"tokens": 8, "ms": 1.0, "flops_per_s": 5e12}],
    }
    assert list(table({"models": {"m": steps}, "missing": ["n: the time was over"]}))[2:] == [
        "| m | decode, 1 x 9 | 2.00 ms, 500 tokens/s | 1.00 ms: its bytes | 2.00 |",
        "| m | decode, 4 x 9 | - | no room | |",
        "| m | prompt of 8 | 5.0 TFLOP/s, 1.0 ms | 10.0 TFLOP/s: a product | 0.50 |",
        "- n: the time was over",
    ]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A model whose process measures it, one whose process fails, which costs others nothing; and the
    refusals."""
    file = tmp_path / "figures.json"
    tiny = ["--device=cpu", "--batches=1,3", "--contexts=16,40", "--steps=6", "--models=tiny"]

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["steps", f"--json={file}", *words])
        main()
        return capsys.readouterr().out

    assert "| tiny | decode, 3 x 40 |" in run(*tiny, "--prompts=24,40")
    assert len(json.loads(file.read_text())["models"]["tiny"]["decode"]) == 4
    assert "- tiny: " in run(*tiny, "--prompts=9000"), "longer than a step: its process failed"
    with pytest.raises(SystemExit, match="unknown models: huge"):
        run("--models=huge")
    with pytest.raises(SystemExit, match="no CUDA device"):
        run()
