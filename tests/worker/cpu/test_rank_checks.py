"""Models that several ranks do not compute are refused by name, before weights are read."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from worker.config.gemma4 import Gemma4Config
from worker.config.split import stage_layers
from worker.cpu import rank_checks
from worker.cpu.precompile import Precompiled
from worker.cpu.rank_checks import check_ranks, divide_stages
from worker.families.registry import read_model_config
from worker.platforms import cpu
from worker.platforms.cpu import CpuPlatform
from worker.startup.checks import check_stages

pytestmark = pytest.mark.cpu_kernels
SIZES = {"num_attention_heads": 8, "head_dim": 128, "num_key_value_heads": 2, "intermediate_size": 1024}


DELTA = {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_value_head_dim": 128}
FAMILIES = {
    "llama": {},
    "qwen3": {},
    "mixtral": {},
    "qwen3_5": DELTA,
    "falcon_h1": {"mamba_d_ssm": 1024, "mamba_n_heads": 8, "mamba_d_head": 128, "mamba_n_groups": 4},
    "gemma4": {"global_head_dim": 128},
    "youtu": {"head_dim": 8, "num_key_value_heads": 8, "v_head_dim": 128},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("quantization", ["", "int8", "int4"])
def test_what_ranks_compute(
    family: str, size: int, quantization: str, checkpoint: Callable[..., Path], short_leaves: None
):
    check_ranks(read_model_config(checkpoint(family, **(SIZES | FAMILIES[family]))), size, quantization)


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
        ("qwen3_5", SIZES, "with 40 inputs, is a sum of 1 leaf,"),
        (
            "qwen3_5",
            SIZES | DELTA | {"linear_num_value_heads": 9, "linear_num_key_heads": 3},
            "with 9 value heads",
        ),
    ],
)
def test_what_they_do_not(family: str, changes: dict[str, object], why: str, checkpoint: Callable[..., Path]):
    with pytest.raises(StartupError, match=why) as raised:
        check_ranks(read_model_config(checkpoint(family, **changes)), 2, "")
    assert raised.value.what == "cannot split the model" and "--tensor-parallel-size" in raised.value.todo


def test_layers_that_read_what_earlier_ones_keep_are_in_one_stage_with_these(checkpoint: Callable[..., Path]):
    """Those of Gemma 4: of six layers the last two read keys and values of the third and the fourth."""
    config = read_model_config(checkpoint("gemma4", vocab_size=320))
    assert isinstance(config, Gemma4Config) and config.num_shared == 2
    assert stage_layers(config) == [0, 1, 2]
    starts = divide_stages(config, check_ranks(config, 1, ""), 3)
    assert starts[0] == 0 and starts[2] <= 2 and starts[3] == 6
    with pytest.raises(StartupError, match="6 layers, which make at most 3 stages"):
        check_stages(config, 4)
    alone = read_model_config(checkpoint("gemma4", num_kv_shared_layers=0))
    assert stage_layers(alone) == list(range(6))


def test_stages_multiply_by_about_as_many_weights(checkpoint: Callable[..., Path]):
    """The head, of more weights than two layers here, is of stage 0."""
    config = read_model_config(checkpoint("llama", num_hidden_layers=8, vocab_size=1000))
    starts = divide_stages(config, check_ranks(config, 1, ""), 2)
    assert starts[0] == 0 and 0 < starts[1] < 4 and starts[2] == 8


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
