"""What tests need of the machine."""

import os
from importlib import import_module
from importlib.util import find_spec

import hypothesis
import pytest

from kernels.cpu.instruction_sets import select, selected_set
from kernels.cpu.requirements import why_not
from tests.parts import entries, thorough

# A fork in a process that uses gRPC waits for gRPC's threads, for ever where one of them waits, too. Ours do
# nothing after it but execute another program. It counts when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# An example that takes long says that the machine is busy, and nothing about the code. Examples are the same
# in each run; --hypothesis-profile=anew draws others.
hypothesis.settings.register_profile(
    "anew", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("fixed", hypothesis.settings.get_profile("anew"), derandomize=True)
hypothesis.settings.load_profile("fixed")

collect_ignore = [] if find_spec("triton") else ["kernels/triton", "worker/cuda"]  # Triton is for Linux alone


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kernels of a process are compiled for one instruction set; this says for which."""
    parser.addoption("--cpu-kernels", default="auto", help="auto, none or an instruction set of this host")
    parser.addoption(
        "--part", default="all", choices=("all", "quick", "rest"), help="see tests/thorough.toml"
    )
    parser.addoption("--emulate-gpu", type=int, help="run Triton's kernels as PTX: 80, 86, 89, 90 or 120")


def skip_marked(items: list[pytest.Item], marker: str, reason: str | None) -> None:
    """reason: None to skip none."""
    for item in items if reason is not None else ():
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason or ""))


def on_a_gpu(config: pytest.Config) -> bool:
    """Whether the tests are those that need one."""
    return "gpu" in config.option.markexpr and "not gpu" not in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Triton decides when it is imported whether it compiles or interprets, once for the process. With
    `-m gpu` it compiles, for the device that must be there; otherwise tests run its interpreter, and
    those that compile do so in a process of their own, or, with `--emulate-gpu`, all do, and run on the
    emulator. Only what Triton brings along is decided here: our kernels are imported as they are by default,
    and interpreted in tests/kernels/triton alone.
    """
    select(config.option.cpu_kernels)
    if on_a_gpu(config):
        import torch

        if not torch.cuda.is_available():
            pytest.exit("-m gpu: torch finds no CUDA device", returncode=pytest.ExitCode.USAGE_ERROR)
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also of the processes that tests start: auto is the CPU
    if find_spec("triton") is not None and config.option.emulate_gpu is None:
        os.environ["TRITON_INTERPRET"] = "1"
        import_module("triton.experimental.gluon")  # and triton, which would import this later
        del os.environ["TRITON_INTERPRET"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the other part of the suite, and what the machine lacks the means for."""
    if config.option.part != "all":
        second = thorough([item.nodeid for item in items], entries())
        parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            parts[(item.nodeid in second) == (config.option.part == "rest")].append(item)
        items[:] = parts[True]
        config.hook.pytest_deselected(items=parts[False])
    skip_marked(items, "cpu_kernels", why_not())
    chosen = selected_set()
    compact = chosen is not None and chosen.compact
    skip_marked(items, "compact_weights", None if compact else "weights have 16 bits in this instruction set")
    if not on_a_gpu(config):
        for_gpus = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=for_gpus)
