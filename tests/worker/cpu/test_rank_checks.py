"""Models that several ranks do not compute are refused by name, before weights are read."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from worker.cpu import rank_checks
from worker.cpu.precompile import Precompiled
from worker.cpu.rank_checks import check_ranks
from worker.families.registry import read_model_config
from worker.platforms import cpu
from worker.platforms.cpu import CpuPlatform

pytestmark = pytest.mark.cpu_kernels
SIZES = {"num_attention_heads": 8, "head_dim": 128, "num_key_value_heads": 2, "intermediate_size": 1024}


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_what_ranks_compute(
    family: str, size: int, quantization: str, checkpoint: Callable[..., Path], short_leaves: None
):
    check_ranks(read_model_config(checkpoint(family, **SIZES)), size, quantization)


def test_integers_of_8_bits_are_shared_by_any_number(checkpoint: Callable[..., Path]):
    config = read_model_config(checkpoint("llama", **SIZES))
    check_ranks(config, 8, "int8")
    with pytest.raises(StartupError, match=r"with 1024 inputs, is a sum of 2 leaves.* among 8 ranks"):
        check_ranks(config, 8, "")


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("llama", {}, "with 48 inputs, is a sum of 1 leaf, which cannot be divided among 2 ranks"),
        ("llama", SIZES | {"intermediate_size": 500}, "with 500 inputs, is a sum of 1 leaf,"),
        ("qwen3_5", {}, "keeps states in place of keys and values"),
        ("deepseek_v2", {}, "keeps latents in place of keys and values"),
    ],
)
def test_what_they_do_not(family: str, changes: dict[str, object], why: str, checkpoint: Callable[..., Path]):
    with pytest.raises(StartupError, match=why) as raised:
        check_ranks(read_model_config(checkpoint(family, **changes)), 2, "")
    assert raised.value.what == "cannot split the model" and "--tensor-parallel-size" in raised.value.todo


def test_torch_does_not_divide_sums(checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_checks, "why_not", lambda: "llvmlite is not installed")
    with pytest.raises(StartupError, match="ranks need the compiled kernels.* llvmlite is not installed"):
        check_ranks(read_model_config(checkpoint("llama", **SIZES)), 2, "")


def test_no_code_is_loaded_while_ranks_exchange(monkeypatch: pytest.MonkeyPatch):
    """Loading machine code takes pages away for a moment that have other code, which must not run then."""
    precompiled, plan = mock.Mock(Precompiled), mock.Mock()
    platform = CpuPlatform(WorkerConfig(threads=1), precompiled)

    def join(plan: object) -> None:
        assert not precompiled.begin.called
        raise EOFError

    monkeypatch.setattr(cpu, "read_drafter", lambda plan: None)
    monkeypatch.setattr(platform, "_join", join)
    with pytest.raises(EOFError):
        platform.load_model(plan)
