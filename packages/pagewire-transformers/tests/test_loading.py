"""Checkpoints that transformers' code shall compute, and what is wrong with some."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.errors import StartupError
from pagewire_transformers.config import read_transformers_config
from tests.transformers_models import make_model
from tests.worker.fakes import Driver, initialize
from worker.startup.implementation import choose_implementation

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("Olmo", tmp_path_factory.mktemp("olmo"))


def changed(made: Path, folder: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """A copy with other fields or tensors; None removes one."""
    fields = json.loads((made / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(fields))
    stored = load_file(made / "model.safetensors") | tensors
    save_file({name: each for name, each in stored.items() if each is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({UP: None}, f"lacks tensor {UP}"),
        ({"model.extra.weight": torch.zeros(3)}, "no place for tensor model.extra.weight"),
        (
            {UP: torch.zeros(80, 47)},
            rf"tensor {UP} has shape \[80, 47\], but config.json asks for \[80, 48\]",
        ),
        ({UP: torch.full((80, 48), float("nan"))}, f"tensor {UP} in model.safetensors holds NaN"),
        ({UP: torch.zeros(80, 48, dtype=torch.int32)}, f"tensor {UP} in model.safetensors holds I32"),
    ],
)
def test_wrong_tensors_are_named(tensors: dict[str, Any], why: str, made: Path, tmp_path: Path):
    with pytest.raises(StartupError, match=why):
        Driver(changed(made, tmp_path, **tensors))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("hidden_size", 4096, "is more than any dimension of a tensor: .* in model.safetensors has"),
        ("vocab_size", 10**6, "is more than any dimension of a tensor"),
        ("intermediate_size", 10**9, "must be at most 1048576"),
        ("num_hidden_layers", 4000, r"is more than the checkpoint's [0-9]+ tensors"),
        ("num_hidden_layers", 10**9, "must be at most 4096"),
        ("num_attention_heads", 10**6, "is more than any dimension of a tensor"),
    ],
)
def test_sizes_that_no_tensor_has(field: str, value: int, why: str, made: Path, tmp_path: Path):
    """transformers would allocate what differs from the tensors."""
    with pytest.raises(StartupError, match=rf"config.json: {field} is {value}, but .*{why}"):
        Driver(changed(made, tmp_path, {field: value}))


def test_buffers_of_older_checkpoints_are_left(made: Path, tmp_path: Path):
    Driver(changed(made, tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            "T5ForConditionalGeneration is no language model",
        ),
        ({"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "own.Own"}}, "brings"),
        ({"hidden_size": "many"}, "transformers refuses config.json"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "native families only"),
    ],
)
def test_wrong_configurations_are_named(config: dict[str, Any], why: str, made: Path, tmp_path: Path):
    with pytest.raises(StartupError, match=why):
        read_transformers_config(changed(made, tmp_path, config), trust_remote_code=False)


def test_code_of_a_checkpoint_runs_with_permission_only(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    config = {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    folder = changed(made, tmp_path, config)
    (folder / "own.py").write_text(
        "import os, pathlib\n"
        "from transformers import OlmoConfig, OlmoForCausalLM\n"
        "pathlib.Path(os.environ['PAGEWIRE_RAN']).touch()\n"
        "class OwnConfig(OlmoConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(OlmoForCausalLM):\n    config_class = OwnConfig\n"
    )
    ran = tmp_path / "ran"
    monkeypatch.setenv("PAGEWIRE_RAN", str(ran))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    with pytest.raises(StartupError, match="needs Python code that the checkpoint brings") as refused:
        Driver(folder)
    assert "--trust-remote-code" in refused.value.todo and not ran.exists()
    driver = Driver(folder, trust_remote_code=True)
    assert ran.exists() and "runs code of the checkpoint" in caplog.text
    assert driver.ready.model.architecture == "OwnForCausalLM"


@pytest.mark.parametrize("device", ["cuda", "simulated"])
def test_other_devices_have_native_families_only(device: str, made: Path):
    with pytest.raises(StartupError, match=f"built for a CPU, and the device is {device}"):
        choose_implementation(initialize(made, model_impl="transformers"), device)
    with pytest.raises(StartupError, match="OlmoForCausalLM is not known"):
        choose_implementation(initialize(made), device)


def test_native_is_native(made: Path):
    with pytest.raises(StartupError, match="OlmoForCausalLM is not known"):
        Driver(made, model_impl="native")
