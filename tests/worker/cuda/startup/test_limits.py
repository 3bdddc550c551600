"""What a CUDA device is refused before anything is loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.errors import StartupError
from worker.cuda.device.host_device import HostDevice
from worker.cuda.startup.limits import check_kernels
from worker.families.registry import read_model_config


def test_layers_that_keep_a_state(checkpoint: Callable[..., Path]):
    config = read_model_config(checkpoint("qwen3_5"))
    with pytest.raises(StartupError, match="layers of linear attention .* have no kernel") as error:
        check_kernels(HostDevice(), torch.float32, config, 16)
    assert "--device cpu" in error.value.todo
