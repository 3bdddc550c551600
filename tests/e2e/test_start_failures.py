"""Errors of services that cannot start: what happened, why, what to do; never a traceback."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire import LLM, StartupError
from pagewire.checkpoints.paths import checkpoint_folder
from tests.e2e.services import Serve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model to be broken."""
    return Path(shutil.copytree(checkpoint_folder("demo"), tmp_path / "model"))


def last_lines(service: Serve) -> str:
    code, error = service.end()
    assert code == 1, error
    assert "Traceback" not in error
    assert list(service.runtime.iterdir()) == []
    lines = error.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert starts and starts[-1] >= len(lines) - 3, error
    return "\n".join(lines[starts[-1] :])


def test_a_port_in_use(serve: Callable[..., Serve]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = last_lines(serve("--http-port=-1", port=port))
        assert str(port) in text and "in use" in text and "--port" in text


def test_a_port_in_use_by_another_service_of_several_frontends(serve: Callable[..., Serve]):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "in use" in last_lines(serve("--frontends=2", "--http-port=-1", port=port))
        assert "in use" in last_lines(serve("--http-port=-1", port=port))


def test_a_truncated_weight_file(serve: Callable[..., Serve], model: Path):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    text = last_lines(serve(str(model)))
    assert "model.safetensors" in text


def test_an_unknown_architecture(serve: Callable[..., Serve], model: Path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["FancyForCausalLM"]}))
    text = last_lines(serve(str(model)))
    assert "FancyForCausalLM" in text and "LlamaForCausalLM" in text


def test_no_tokenizer(serve: Callable[..., Serve], model: Path):
    (model / "tokenizer.json").unlink()
    assert "tokenizer" in last_lines(serve(str(model)))


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--device=cuda", ["device", "CUDA"]),
        ("--tensor-parallel-size=4", ["tensor", "6 attention heads"]),
        ("--max-model-len=1000000", ["max", "1000000"]),
        ("--swap-space=900000", ["--swap-space", "memory"]),
    ],
)
def test_unavailable_features_are_named(serve: Callable[..., Serve], flag: str, words: list[str]):
    text = last_lines(serve(flag))
    for word in words:
        assert word in text


def test_weights_that_cannot_become_int8(serve: Callable[..., Serve]):
    text = last_lines(serve("--quantization=int8", "--dtype=float32"))
    assert "int8" in text and "float32" in text and "--quantization" in text


def test_llm_raises_the_reason(model: Path):
    (model / "model.safetensors").unlink()
    with pytest.raises(StartupError, match="safetensors"):
        LLM(str(model))


def test_a_recording_that_cannot_be_written(serve: Callable[..., Serve], tmp_path: Path):
    """Reported before anything is loaded."""
    text = last_lines(serve(f"--record={tmp_path / 'missing' / 'file'}"))
    assert "cannot record" in text and str(tmp_path / "missing" / "file") in text and "--record" in text
    assert "--record FILE" in last_lines(serve("--record-tokens"))


def test_a_fault_on_purpose_that_makes_no_sense(serve: Callable[..., Serve]):
    """The core knows its name, the worker validates its value."""
    assert "--worker-fault sing=1" in last_lines(serve("--worker-fault=sing=1"))
    text = last_lines(serve("--device=simulated", "--worker-fault=die-at-step=0.5"))
    assert "--fault-die-at-step" in text and "0.5" in text
