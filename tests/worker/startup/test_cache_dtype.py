"""What a KV cache of 8 bits is refused for, by name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.ops.attention.e4m3 import E4M3
from kernels.triton import requirements
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire_simulated.platform import SimulatedPlatform
from tests.worker.fakes import initialize, load_on_a_cpu
from worker.load import load


@pytest.mark.parametrize(("family", "keeps"), [("youtu", "latents"), ("qwen3_next", "states")])
def test_models_that_keep_something_else(family: str, keeps: str, checkpoint: Callable[..., Path]):
    command = initialize(checkpoint(family), kv_cache_dtype="fp8_e4m3")
    with pytest.raises(StartupError, match=f"keeps {keeps} in place of") as caught:
        load_on_a_cpu(command)
    assert "fp8_e4m3" in caught.value.what and "--kv-cache-dtype" in caught.value.todo


def test_a_simulated_device(checkpoint: Callable[..., Path]):
    command = initialize(
        checkpoint("llama"), device="simulated", kv_cache_dtype="fp8_e4m3", profile="instant"
    )
    with pytest.raises(StartupError, match="the device is simulated"):
        load(command, SimulatedPlatform(WorkerConfig()))


def test_cards_before_8_9_and_large_heads(monkeypatch: pytest.MonkeyPatch):
    """Which the kernels of a model in 16 bits support."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    cuda, bf16 = torch.device("cuda"), torch.bfloat16
    assert requirements.why_not(cuda, bf16, 128, bf16) is None
    assert "needs 8.9" in str(requirements.why_not(cuda, bf16, 128, E4M3))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert requirements.why_not(cuda, bf16, 128, E4M3) is None
    assert requirements.why_not(cuda, bf16, 256, bf16) is None
    assert "up to 128" in str(requirements.why_not(cuda, bf16, 256, E4M3))
