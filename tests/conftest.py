"""What tests need of the machine."""

import os
from importlib import import_module
from importlib.util import find_spec

import hypothesis
import pytest

from kernels.cpu.requirements import why_not, why_not_int8

# A fork in a process that uses gRPC waits for gRPC's threads, for ever where one of them waits, too. Ours do
# nothing after it but execute another program. It counts when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# An example that takes long says that the machine is busy, and nothing about the code.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

collect_ignore = [] if find_spec("triton") else ["kernels/triton", "worker/cuda"]  # Triton is for Linux alone


def on_a_gpu(config: pytest.Config) -> bool:
    """Whether the tests are those that need one."""
    return "gpu" in config.option.markexpr and "not gpu" not in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Triton decides when it is imported whether it compiles or interprets, once for the process. With
    `-m gpu` it compiles, for the device that must be there; otherwise tests run its interpreter, and
    those that compile do so in a process of their own. Only what Triton brings along is decided here:
    our kernels are imported as they are by default, and interpreted in tests/kernels/triton alone.
    """
    if on_a_gpu(config):
        import torch

        if not torch.cuda.is_available():
            pytest.exit("-m gpu: torch finds no CUDA device", returncode=pytest.ExitCode.USAGE_ERROR)
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also of the processes that tests start: auto is the CPU
    if find_spec("triton") is not None:
        os.environ["TRITON_INTERPRET"] = "1"
        import_module("triton.experimental.gluon")  # and triton, which would import this later
        del os.environ["TRITON_INTERPRET"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The markers are about need: elsewhere these tests do not run."""
    for marker, look in {"avx512_bf16": why_not, "avx512_vnni": why_not_int8}.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = look() if marked else None
        if reason is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
    if not on_a_gpu(config):
        for_gpus = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=for_gpus)
