"""What must hold of a service, whatever it was sent: it answers with an allowed status, its processes live, a
bystander's stream is not disturbed, and everything returns to where it was."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from pagewire import Client, SamplingParams
from pagewire.local_service import Service
from tests.e2e import services

ALLOWED = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""Not among them: INTERNAL and UNKNOWN, a fault of ours; UNAVAILABLE, which says that a process died."""
TELLTALE = ("/", "pid", ".py", ".ipc", "Traceback", "0x")
"""What an error's text must not hold: paths, processes, modules, addresses."""
CANARY = ("The capital of France is", SamplingParams(max_tokens=24, ignore_eos=True, seed=5))
PAUSE_S = 0.02
"""Of a bystander between two streams: without one it takes most of two cores, and the attack the rest."""
OWN_READERS = "reader"
"""Processes that frontends start when there is something long to read."""


class Bystander(threading.Thread):
    """A client with an honest stream after another, each of which must be what it always was."""

    def __init__(self, address: str) -> None:
        super().__init__(name="bystander")
        self._address = address
        self._stop_asked = threading.Event()
        self.num_streams = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with Client(self._address) as client:
            expected = None
            while not self.num_streams or not self._stop_asked.wait(PAUSE_S):
                try:
                    found = canary(client)
                except Exception as error:
                    self.wrong.append(repr(error))
                    return
                expected = expected or found
                self.num_streams += 1
                if found != expected:
                    self.wrong.append(f"{found} instead of {expected}")

    def end(self) -> None:
        """Waits for the last stream, and looks at all of them."""
        self._stop_asked.set()
        self.join(services.PATIENCE_S)
        assert not self.is_alive(), "a stream stands still"
        assert not self.wrong and self.num_streams


def canary(client: Client) -> list[int]:
    """The tokens of a request that never changes."""
    positions, tokens = 0, []
    with client.stream(CANARY[0], CANARY[1]) as stream:
        for delta in stream:
            tokens += delta.token_ids
        positions = len(tokens)
    assert positions == 24
    return tokens


def census(service: Service) -> dict[str, list[int]]:
    """The processes of a service that must live on, by command."""
    found = services.processes(service.pid)
    found.pop(OWN_READERS, None)
    return found


def counts(pids: Iterator[int] | list[int]) -> tuple[int, int]:
    """(open descriptors, threads) of processes."""
    folders = [Path("/proc") / str(pid) for pid in pids]
    return tuple(sum(len(os.listdir(folder / kind)) for folder in folders) for kind in ("fd", "task"))  # type: ignore[return-value]


@contextmanager
def unharmed(service: Service) -> Iterator[None]:
    """Checks the service before, during and after the block."""
    with Client(service.address) as client:
        golden = canary(client)
        services.wait_until(lambda: services.is_idle(client))
        before = census(service)
        pids = [pid for each in before.values() for pid in each]
        descriptors, threads = counts(pids)
        bystander = Bystander(service.address)
        bystander.start()
        try:
            yield
        finally:
            bystander.end()
        assert census(service) == before, "a process died"
        assert canary(client) == golden
        services.wait_until(lambda: services.is_idle(client))
        # A connection that closes takes a moment; threads of grpc's pool come and go.
        services.wait_until(lambda: counts(pids)[0] <= descriptors + 8)
        services.wait_until(lambda: counts(pids)[1] <= threads + 24)


def check_error(error: grpc.RpcError) -> grpc.StatusCode:
    """An allowed status that says nothing of our insides."""
    code = error.code()
    details = error.details() or ""
    assert code in ALLOWED, f"{code}: {details}"
    inside = [word for word in TELLTALE if word in details]
    assert not inside or code is grpc.StatusCode.NOT_FOUND, details
    return code


@pytest.fixture(scope="package")
def victim() -> Iterator[Service]:
    """A service without a model, which computes at once."""
    with services.start(device="simulated", profile="instant", num_blocks=256, max_num_seqs=32) as service:
        yield service
