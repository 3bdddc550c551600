"""What is refused before anything is loaded, and what is said."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire_simulated.platform import refuse_cache_dtype
from worker.families.registry import read_model_config
from worker.startup.checks import (
    check_group,
    check_quantization,
    check_stages,
    choose_max_model_len,
    refuse_fast_matmul,
    refuse_second_quantization,
)


def model(max_position: int, bidirectional: bool = False) -> Any:
    return SimpleNamespace(
        max_position=max_position,
        bidirectional=bidirectional,
        architecture="BertModel",
        num_layers=3,
        vision=None,
    )


def lengths(max_model_len: int, budget: int = 50) -> worker_pb2.Initialize:
    return worker_pb2.Initialize(max_model_len=max_model_len, max_num_batched_tokens=budget)


@pytest.mark.parametrize(("requested", "chosen"), [(0, 100), (1, 1), (99, 99), (100, 100)])
def test_a_context_length(requested: int, chosen: int):
    """That of the model, unless less is asked for."""
    assert choose_max_model_len(lengths(requested), model(100)) == chosen


def test_a_longer_context_than_the_model_knows():
    with pytest.raises(StartupError, match="max_model_len = 101, but the model goes to 100") as refused:
        choose_max_model_len(lengths(101), model(100))
    assert "--max-model-len" in refused.value.todo


def test_the_context_of_prompts_that_are_computed_in_one_step(caplog: pytest.LogCaptureFixture):
    """What a step may have, with a warning, but not less than what is asked for."""
    encoder = model(100, bidirectional=True)
    assert choose_max_model_len(lengths(50), encoder) == 50 and not caplog.text
    assert choose_max_model_len(lengths(0, budget=100), encoder) == 100 and not caplog.text
    assert choose_max_model_len(lengths(0), encoder) == 50
    assert "context is 50 tokens, not 100" in caplog.text and "--max-num-batched-tokens" in caplog.text
    with pytest.raises(StartupError, match="max_model_len = 51, but BertModel computes a prompt") as refused:
        choose_max_model_len(lengths(51), encoder)
    assert "--max-num-batched-tokens 51" in refused.value.todo


def test_a_group_of_one():
    for device in ("cpu", "cuda", "simulated"):
        check_group(0, worker_pb2.Initialize(tensor_parallel_size=1), device)


@pytest.mark.parametrize("device", ["cpu", "simulated"])
@pytest.mark.parametrize("flag", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_a_group_of_two(device: str, flag: str):
    for rank in (0, 1):
        check_group(rank, worker_pb2.Initialize(**{flag: 2}), device)


def test_each_stage_has_a_layer():
    check_stages(model(100), 3)
    with pytest.raises(StartupError, match="--pipeline-parallel-size 4, and the model has 3 layers"):
        check_stages(model(100), 4)


@pytest.mark.parametrize(("family", "attending"), [("qwen3_5", 2), ("granite_hybrid", 2), ("falcon_h1", 4)])
def test_each_stage_has_a_layer_that_attends(family: str, attending: int, checkpoint: Callable[..., Path]):
    """Where others keep states; those of Falcon-H1 do both."""
    layers = ["linear_attention", "full_attention"] * 2
    changes = {"num_hidden_layers": 4} | ({} if family == "falcon_h1" else {"layer_types": layers})
    config = read_model_config(checkpoint(family, **changes))
    check_stages(config, attending)
    why = "the model has 4 layers" + (", which make at most 2 stages" if attending == 2 else "")
    with pytest.raises(StartupError, match=f"--pipeline-parallel-size {attending + 1}, and {why}"):
        check_stages(config, attending + 1)


@pytest.mark.parametrize(
    ("rank", "fields", "device", "flag"),
    [
        (1, {"tensor_parallel_size": 1}, "cpu", "--rank 0"),
        (2, {"tensor_parallel_size": 2}, "cpu", "--rank 0 to 1"),
        (0, {"tensor_parallel_size": 2, "num_hosts": 2}, "cuda", "--device cpu"),
        (0, {"tensor_parallel_size": 2, "speculation": worker_pb2.Speculation()}, "simulated", "--speculate"),
        (0, {"tensor_parallel_size": 2, "max_loras": 8}, "simulated", "leave them out"),
        (0, {"tensor_parallel_size": 2, "load_format": "dummy"}, "cpu", "use a checkpoint"),
        (6, {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, "cpu", "--rank 0 to 5"),
        (0, {"pipeline_parallel_size": 2, "load_format": "dummy"}, "cpu", "use a checkpoint"),
    ],
)
def test_groups_that_there_are_not(rank: int, fields: dict[str, Any], device: str, flag: str):
    with pytest.raises(StartupError) as refused:
        check_group(rank, worker_pb2.Initialize(**fields), device)
    assert flag in refused.value.todo


@pytest.mark.parametrize(
    ("refuse", "wanted", "none", "flag"),
    [
        (check_quantization, "int8", "", "--quantization"),
        (refuse_fast_matmul, True, False, "--fast-matmul"),
        (refuse_cache_dtype, "fp8_e4m3", "", "--kv-cache-dtype"),
    ],
)
def test_what_a_device_cannot(refuse: Callable[..., None], wanted: object, none: object, flag: str):
    """It is named, with the flag to leave out; nothing is said where nothing was asked for."""
    refuse(none, "simulated")
    with pytest.raises(StartupError) as refused:
        refuse(wanted, "simulated")
    assert "simulated" in refused.value.why and flag in refused.value.todo


def test_4_bits_have_a_name_per_device():
    """A CPU and a CUDA device round to 4 bits differently, so that neither takes the name of the other's."""
    for device, own, other in (("cpu", "int4", "int4-g32"), ("cuda", "int4-g32", "int4")):
        for fits in ("", "int8", own):
            check_quantization(fits, device)
        with pytest.raises(StartupError, match=f"weights to {other}:") as refused:
            check_quantization(other, device)
        assert refused.value.todo == f"use --quantization {own} or int8"


def test_weights_are_quantized_once(tmp_path: Path):
    """Those of a checkpoint in few bits, and those of a GGUF file, keep their own; others can be rounded."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refuse_second_quantization("int4", tmp_path)
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}  # type: ignore[assignment]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartupError, match="cannot quantize the weights to int4.*quant_method is gptq"):
        refuse_second_quantization("int4", tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    refuse_second_quantization("int4", tmp_path / "model.gguf")
