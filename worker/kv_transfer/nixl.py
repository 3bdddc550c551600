"""Blocks by NIXL: the reader gets them out of the memory of their worker, over whatever network UCX finds.

An address is a JSON object in base64: the agent's metadata, where its pools are in memory, the layout, and a
MAC of these by --prefix-cache-key. What is read comes into memory of the reading's own, and is copied to
blocks when all of it is there: where a reading ends before, nothing can be written to a block later.

NIXL encrypts nothing and asks for no key: a process that reaches UCX's ports, and knows an address, reads and
writes the cache. UCX is held to the loopback interface unless the network is trusted.
"""

import binascii
import hmac
import importlib
import json
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_hex
from typing import Any

import numpy as np
import numpy.typing as npt

from pagewire.errors import StartupError
from worker.kv_transfer.memory import PoolMemory, Span
from worker.kv_transfer.path import TransferFailed, transfer_key

MODULES = "nixl._api", "nixl_cu12._api", "nixl_cu13._api"
"""Of NIXL's packages, one of which the extra `nixl` installs."""
POLL_S = 0.0005
MOST_ABANDONED = 4
"""Transfers that were stopped and have not ended, beyond which nothing more is read."""
_DEVICES = "UCX_NET_DEVICES"
_HOST = "DRAM"


@dataclass(slots=True)
class _Transfer:
    """What is read, and the memory that it is written to."""

    handle: Any
    registered: Any
    kept: npt.NDArray[Any]
    state: str


class NixlPath:
    """The agent of one worker. A DataPath."""

    def __init__(self, memory: PoolMemory, key: bytes, *, is_trusted: bool) -> None:
        """key: as Initialize.cache_key. is_trusted: UCX may use every interface. Raises StartupError where
        NIXL is missing, or does not start."""
        if not is_trusted:
            os.environ[_DEVICES] = "lo"
        api = _nixl()
        self._memory, self._key, self._spans = memory, transfer_key(key), memory.spans()
        self._lock = threading.RLock()  # of the agent
        self._abandoned: list[_Transfer] = []  # that were stopped, and may be written to still
        try:
            self._agent = api.nixl_agent(token_hex(8), api.nixl_agent_config(backends=["UCX"]))
            regions = [(span.address, span.num_bytes, 0, "") for span in self._spans]
            self._registered = self._agent.register_memory(regions, _HOST)
        except Exception as error:  # NIXL's own types are RuntimeErrors and others
            why = f"--kv-transfer nixl: {type(error).__name__}: {error}"
            raise StartupError(
                "cannot exchange KV blocks", why, "leave it out: blocks then go by TCP"
            ) from error
        self.address = self._describe()

    def reading(self) -> "NixlReading":
        return NixlReading(self)

    def _describe(self) -> str:
        own = {
            "agent": b64encode(self._agent.get_agent_metadata()).decode(),
            "layout": self._memory.layout.hex(),
            "num_blocks": self._memory.num_blocks,
            "spans": [span.numbers() for span in self._spans],
        }
        text = json.dumps(own).encode()
        return b64encode(_mac(self._key, text) + text).decode()

    def read(
        self, address: str, blocks: Sequence[int], targets: Sequence[int], stop: threading.Event
    ) -> None:
        """Reads blocks of the worker that an address is of to targets here, until `stop` is set. Raises
        TransferFailed; no target is written then."""
        metadata, spans = self._parse(address, blocks)
        memory = self._memory
        if any(target >= memory.num_blocks for target in targets):
            raise TransferFailed("a target is no block")
        if not blocks or not memory.block_bytes:
            return
        pieces = np.concatenate([span.pieces(block) for block in blocks for span in spans])
        kept = np.empty((len(blocks), memory.block_bytes), np.uint8)
        try:
            self._fetch(metadata, pieces, kept, stop)
        except TransferFailed:
            raise
        except Exception as error:  # as above; also of a peer that is gone
            raise TransferFailed(f"{type(error).__name__}: {error}") from error
        for content, target in zip(kept, targets, strict=True):
            memory.write(target, content.tobytes())

    def _fetch(
        self, metadata: bytes, pieces: npt.NDArray[Any], kept: npt.NDArray[Any], stop: threading.Event
    ) -> None:
        """Reads pieces [N, 3] of another agent into kept, one behind the other."""
        here = pieces.copy()
        here[:, 0] = kept.ctypes.data + np.cumsum(pieces[:, 1]) - pieces[:, 1]
        with ExitStack() as stack:
            with self._lock:
                self._release_abandoned()
                transfer = self._begin(metadata, here, pieces, kept, stack)
            while transfer.state == "PROC":
                if stop.wait(POLL_S):
                    stack.pop_all()  # the other side may write to this memory still
                    self._abandoned.append(transfer)
                    raise TransferFailed("it was stopped")
                with self._lock:
                    transfer.state = self._agent.check_xfer_state(transfer.handle)
            if transfer.state != "DONE":
                raise TransferFailed("the other worker's memory cannot be read")

    def _begin(
        self,
        metadata: bytes,
        here: npt.NDArray[Any],
        there: npt.NDArray[Any],
        kept: npt.NDArray[Any],
        stack: ExitStack,
    ) -> "_Transfer":
        """Begins to read pieces of another agent, [N, 3]. stack: ends what was begun."""
        agent = self._agent
        if len(self._abandoned) >= MOST_ABANDONED:
            raise TransferFailed("too many others were stopped and have not ended")
        registered = agent.register_memory([(kept.ctypes.data, kept.nbytes, 0, "")], _HOST)
        stack.callback(self._locked, agent.deregister_memory, registered)
        name = agent.add_remote_agent(metadata)
        descriptors = agent.get_xfer_descs(here, _HOST), agent.get_xfer_descs(there, _HOST)
        handle = agent.initialize_xfer("READ", *descriptors, name)
        stack.callback(self._locked, agent.release_xfer_handle, handle)
        return _Transfer(handle, registered, kept, agent.transfer(handle))

    def _locked(self, call: Callable[[Any], object], value: Any) -> None:
        with self._lock:
            call(value)

    def _release_abandoned(self) -> None:
        """Releases the memory of transfers that were stopped, as far as they have ended."""
        agent, left = self._agent, list[_Transfer]()
        for each in self._abandoned:
            if agent.check_xfer_state(each.handle) == "PROC":
                left.append(each)
                continue
            agent.release_xfer_handle(each.handle)
            agent.deregister_memory(each.registered)
        self._abandoned = left

    def _parse(self, address: str, blocks: Sequence[int]) -> tuple[bytes, list[Span]]:
        """Returns metadata of an agent, and its pools. Raises TransferFailed unless a worker with the key and
        this layout has made the address, and has the blocks."""
        try:
            content = b64decode(address, validate=True)
        except (binascii.Error, ValueError) as error:
            raise TransferFailed("its address cannot be read: is its --kv-transfer another one?") from error
        size = len(_mac(self._key, b""))
        if not hmac.compare_digest(content[:size], _mac(self._key, content[size:])):
            raise TransferFailed("its key is another one")
        other = json.loads(content[size:])
        if bytes.fromhex(other["layout"]) != self._memory.layout:
            raise TransferFailed("its cache is another one")
        if any(block >= other["num_blocks"] for block in blocks):
            raise TransferFailed("a block is none of the other worker")
        return b64decode(other["agent"]), [Span(*numbers) for numbers in other["spans"]]


class NixlReading:
    """Reads blocks of another worker, once. A Reading."""

    def __init__(self, path: NixlPath) -> None:
        self._path, self._stop = path, threading.Event()

    def run(self, address: str, blocks: Sequence[int], targets: Sequence[int]) -> None:
        if self._stop.is_set():
            raise TransferFailed("it was stopped")
        self._path.read(address, blocks, targets, self._stop)

    def stop(self) -> None:
        self._stop.set()


def _nixl() -> Any:
    """Returns NIXL's module. Raises StartupError."""
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    why = "--kv-transfer nixl, and NIXL is not installed"
    raise StartupError("cannot exchange KV blocks", why, "pip install 'pagewire[nixl]'")


def _mac(key: bytes, content: bytes) -> bytes:
    return blake2b(content, digest_size=32, key=key, person=b"nixl address").digest()
