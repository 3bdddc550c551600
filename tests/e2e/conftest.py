"""One running service, shared by tests that do not disturb it."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire import Client
from pagewire.local_service import Service
from tests.e2e import services


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    """A service with the demo model and default flags."""
    with services.start() as service:
        yield service


@pytest.fixture
def client(demo: Service) -> Iterator[Client]:
    """A client of the demo service; the service must be idle again after the test."""
    with Client(demo.address) as client:
        yield client
        services.wait_until(lambda: services.is_idle(client))


@pytest.fixture
def serve() -> Iterator[Callable[..., services.Serve]]:
    """Starts `pagewire serve`; see services.Serve."""
    started: list[services.Serve] = []
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as runtime:

        def start(*arguments: str, port: int = 0) -> services.Serve:
            started.append(services.Serve(Path(runtime), *arguments, port=port))
            return started[-1]

        yield start
        for each in started:
            each.close()
