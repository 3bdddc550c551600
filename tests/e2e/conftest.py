"""One running service, shared by tests that do not disturb it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pagewire import Client
from pagewire.local_service import Service
from pagewire_client.transport import recovery
from tests.e2e import services
from tests.e2e.node import install_examples


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    """A service with the demo model and default flags, except for the OpenAI API on a free port."""
    with services.start(openai_port=0) as service:
        yield service


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/node with its packages."""
    folder = tmp_path_factory.mktemp("node")
    install_examples(folder)
    return folder


@pytest.fixture(scope="session")
def float32() -> Iterator[Service]:
    """A service with the demo model in float32, whose results are the same in steps of all sizes, and two
    frontends. Tests may kill its processes, and wait until they are back."""
    with services.start(dtype="float32", frontends=2, max_deaths=99) as service:
        yield service


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait for a server for as long as a busy machine takes to load a worker."""
    monkeypatch.setattr(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)


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

        def start(*arguments: str, port: int = 0, inside: Sequence[str] = ()) -> services.Serve:
            started.append(services.Serve(Path(runtime), *arguments, port=port, inside=inside))
            return started[-1]

        yield start
        for each in started:
            each.close()
