"""Each test runs a Triton kernel in the interpreter, on the CPU; with `-m gpu`, on a CUDA device; with
`--emulate-gpu 90`, its PTX on the emulator (packages/ptx-emulator).

The interpreter is told to by an environment variable, at the time when a kernel is defined: so the
kernels are imported here, within it. tests/conftest.py has imported triton itself in the same way.
"""

import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import kernels.triton
import kernels.triton.requirements  # before the variable is set: the operations of kernels/ stay torch's
from tests.conftest import on_a_gpu
from tests.kernels.tolerances import TOLERANCES

if TYPE_CHECKING:
    from ptx_emulator.launch import Emulator


@dataclass(frozen=True)
class Where:
    """A device, a dtype, and how far a result in it may be from float64."""

    device: torch.device
    dtype: torch.dtype
    absolute: float
    relative: float


def pytest_configure(config: pytest.Config) -> None:
    """Unless a GPU or its emulator is to run them."""
    if on_a_gpu(config) or config.option.emulate_gpu is not None:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    for module in pkgutil.walk_packages(kernels.triton.__path__, "kernels.triton."):
        import_module(module.name)
    del os.environ["TRITON_INTERPRET"]
    import_module("kernels.triton.interpreter").compute_as_a_device_does()


INTERPRETED = [pytest.param(("cpu", *row), id=f"cpu-{row[0]}") for row in TOLERANCES]
ON_A_GPU = [pytest.param(("cuda", *row), id=f"cuda-{row[0]}", marks=pytest.mark.gpu) for row in TOLERANCES]


@pytest.fixture(params=INTERPRETED + ON_A_GPU)
def where(request: pytest.FixtureRequest) -> Where:
    """Of kernels that compute in the model's dtype."""
    device, *rest = request.param
    return Where(torch.device(device), *rest)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Of kernels that know one dtype, or treat all alike."""
    return torch.device(request.param)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of attention are of 64 positions: rows of a few hundred have several."""
    for module in ("attention_sizes", "merge_chunks", "paged_attention"):
        monkeypatch.setattr(f"kernels.triton.attention.{module}.CHUNK", 64)
    return 64


@pytest.fixture(autouse=True)
def device_without_a_card(request: pytest.FixtureRequest) -> Iterator["Emulator | None"]:
    """With `--emulate-gpu`, launches run the PTX that they compile to. None: without."""
    capability = request.config.option.emulate_gpu
    if capability is not None and capability < 89 and "8_bits" in request.node.name:
        pytest.skip("cards before 8.9 cannot convert to float8 e4m3")
    if capability is None:
        yield None
        return
    # It imports kernels, as they are: where they are interpreted, not before that is said.
    from ptx_emulator.launch import emulating

    with emulating(capability) as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def arithmetic_of_a_gpu() -> Iterator[None]:
    """The interpreter computes in numpy, which warns of what a GPU does in silence: exp(100) is inf."""
    with np.errstate(all="ignore"):
        yield
