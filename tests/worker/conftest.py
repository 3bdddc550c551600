"""What every test of the worker has."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoints import make_checkpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on a machine that others use too: waiting for a second thread costs milliseconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def no_release_of_memory() -> Iterator[None]:
    """These tests start hundreds of workers in one process: what a start leaves need not go back each
    time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.platforms.cpu.release_startup_memory", lambda: None)
        yield


@pytest.fixture
def short_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of small models are sums of several leaves."""
    monkeypatch.setattr("kernels.ops.layers.leaves.LEAST_INPUTS", 256)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_checkpoint(family, **overrides), each made once."""
    made: dict[str, Path] = {}

    def make(family: str, **overrides: object) -> Path:
        key = repr((family, sorted(overrides.items())))
        if key not in made:
            made[key] = make_checkpoint(family, tmp_path_factory.mktemp(family), **overrides)
        return made[key]

    return make
