"""Blocks by NIXL, and by a double of it within this process."""

import ctypes
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.worker.kv_transfer.test_tcp import KEY, memory
from worker.kv_transfer import nixl
from worker.kv_transfer.nixl import NixlPath
from worker.kv_transfer.path import TransferFailed

Descriptors = list[tuple[int, int, int]]


class Agent:
    """What NixlPath calls of nixl_agent."""

    silent: ClassVar[bool] = False
    """Whether transfers stay in progress."""
    agents: ClassVar[dict[bytes, "Agent"]] = {}

    def __init__(self, name: str, config: object) -> None:
        self.name, self.regions, self.released = name.encode(), list[Any](), 0
        self.agents[self.name] = self

    def register_memory(self, regions: list[Any], kind: str) -> list[Any]:
        assert kind == "DRAM"
        self.regions += regions
        return regions

    def deregister_memory(self, regions: list[Any]) -> None:
        for region in regions:
            self.regions.remove(region)

    def get_agent_metadata(self) -> bytes:
        return self.name

    def add_remote_agent(self, metadata: bytes) -> bytes:
        return self.agents[metadata].name

    def get_xfer_descs(self, pieces: np.ndarray, kind: str) -> Descriptors:
        assert kind == "DRAM"
        return [tuple(map(int, piece)) for piece in pieces]

    def initialize_xfer(self, operation: str, here: Descriptors, there: Descriptors, name: bytes) -> Any:
        assert operation == "READ"
        for agent, pieces in ((self, here), (self.agents[name], there)):
            for address, size, device in pieces:
                assert device == 0
                assert any(
                    at <= address and address + size <= at + length for at, length, *_ in agent.regions
                ), "memory that is not registered"
        return here, there

    def transfer(self, handle: tuple[Descriptors, Descriptors]) -> str:
        if self.silent:
            return "PROC"
        for (target, size, _), (source, same, _) in zip(*handle, strict=True):
            assert size == same
            ctypes.memmove(target, source, size)
        return "DONE"

    def check_xfer_state(self, handle: object) -> str:
        return "PROC" if self.silent else "DONE"

    def release_xfer_handle(self, handle: object) -> None:
        self.released += 1


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Agent]]:
    made = SimpleNamespace(nixl_agent=Agent, nixl_agent_config=lambda backends: backends)
    monkeypatch.setattr(nixl, "_nixl", lambda: made)
    yield Agent
    Agent.agents.clear()
    Agent.silent = False


@pytest.fixture(params=["double", "nixl"])
def paths(request: pytest.FixtureRequest) -> tuple[Any, Any, NixlPath, NixlPath]:
    """Two memories, and their paths."""
    if request.param == "double":
        request.getfixturevalue("double")
    elif not any(map(find_spec, ("nixl", "nixl_cu12", "nixl_cu13"))):
        pytest.skip("the extra nixl, of 235 MB, is not installed")
    source, target = memory(1), memory(2)
    return source, target, *(NixlPath(each, KEY, is_trusted=False) for each in (source, target))


def test_blocks_have_their_bytes(paths: tuple[Any, Any, NixlPath, NixlPath]) -> None:
    source, target, there, here = paths
    before = memory(2)
    here.reading().run(there.address, [0, 5, 7], [3, 1, 0])
    here.reading().run(there.address, [], [])
    assert [target.read(block) for block in (3, 1, 0)] == [source.read(block) for block in (0, 5, 7)]
    for block in (2, 4, 5, 6, 7, 8):
        assert target.read(block) == before.read(block)


@pytest.mark.parametrize(
    ("target", "key", "blocks", "why"),
    [
        (memory(2), b"l" * 32, [0], "its key"),
        (memory(2, width=5), KEY, [0], "its cache"),
        (memory(2), KEY, [8], "none of the other worker"),
    ],
    ids=["another key", "another layout", "padding"],
)
@pytest.mark.usefixtures("double")
def test_what_is_not_read(target: Any, key: bytes, blocks: list[int], why: str) -> None:
    there, here = NixlPath(memory(1), KEY, is_trusted=True), NixlPath(target, key, is_trusted=True)
    before = [target.read(block) for block in range(8)]
    with pytest.raises(TransferFailed, match=why):
        here.reading().run(there.address, blocks, [0])
    assert [target.read(block) for block in range(8)] == before


@pytest.mark.usefixtures("double")
def test_an_address_that_was_changed_is_not_used() -> None:
    there, here = (NixlPath(memory(seed), KEY, is_trusted=True) for seed in (1, 2))
    content = bytearray(b64decode(there.address))
    content[-2] ^= 1
    for address in (b64encode(content).decode(), "127.0.0.1:5", ""):
        with pytest.raises(TransferFailed, match=r"its (key|address)"):
            here.reading().run(address, [0], [0])


def test_a_reading_that_is_stopped_writes_to_no_block_later(double: type[Agent]) -> None:
    double.silent = True
    target = memory(2)
    there, here = NixlPath(memory(1), KEY, is_trusted=True), NixlPath(target, KEY, is_trusted=True)
    reading, failed = here.reading(), threading.Event()

    def run() -> None:
        with pytest.raises(TransferFailed, match="stopped"):
            reading.run(there.address, [0], [4])
        failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    reading.stop()
    thread.join()
    assert failed.is_set() and target.read(4) == memory(2).read(4)
    agent = double.agents[here._agent.name]
    assert len(agent.regions) == 3, "what may be written to stays"
    for _ in range(nixl.MOST_ABANDONED):
        late = here.reading()
        late._stop = SimpleNamespace(wait=lambda seconds: True, is_set=lambda: False)
        with pytest.raises(TransferFailed, match="stopped"):
            late.run(there.address, [0], [4])
    double.silent = False
    here.reading().run(there.address, [0], [4])
    assert len(agent.regions) == 2 and target.read(4) == memory(1).read(0)


def test_an_agent_that_is_gone_is_an_error(double: type[Agent]) -> None:
    there, here = NixlPath(memory(1), KEY, is_trusted=True), NixlPath(memory(2), KEY, is_trusted=True)
    double.agents.clear()
    with pytest.raises(TransferFailed, match="KeyError"):
        here.reading().run(there.address, [0], [0])
    assert len(here._agent.regions) == 2, "nothing else is registered"
