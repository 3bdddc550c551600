"""Each test runs a Triton kernel in the interpreter, on the CPU; with `-m gpu`, on a CUDA device.

The interpreter is told to by an environment variable, at the time when a kernel is defined: so the
kernels are imported here, within it. tests/conftest.py has imported triton itself in the same way.
"""

import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pytest
import torch

import kernels.triton
import kernels.triton.requirements  # before the variable is set: the operations of kernels/ stay torch's
from tests.conftest import on_a_gpu
from tests.kernels.tolerances import TOLERANCES


@dataclass(frozen=True)
class Where:
    """A device, a dtype, and how far a result in it may be from float64."""

    device: torch.device
    dtype: torch.dtype
    absolute: float
    relative: float


def pytest_configure(config: pytest.Config) -> None:
    """Unless a GPU is to run them."""
    if on_a_gpu(config):
        return
    os.environ["TRITON_INTERPRET"] = "1"
    for module in pkgutil.walk_packages(kernels.triton.__path__, "kernels.triton."):
        import_module(module.name)
    del os.environ["TRITON_INTERPRET"]
    import_module("tests.kernels.triton.interpreter").compute_as_a_device_does()


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


@pytest.fixture(autouse=True)
def arithmetic_of_a_gpu() -> Iterator[None]:
    """The interpreter computes in numpy, which warns of what a GPU does in silence: exp(100) is inf."""
    with np.errstate(all="ignore"):
        yield
