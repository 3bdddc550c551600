"""What every test of a kernel has."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As for the worker's tests; and with one thread torch sums in an order that is always the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 2, 3, 8])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """More than there are cores as well: some come late, or never, and others compute what they took."""
    from kernels.cpu.runtime.thread_pool import TEAM

    before = TEAM.threads
    TEAM.set_threads(request.param)
    yield request.param
    TEAM.set_threads(before)
