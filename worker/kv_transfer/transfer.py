"""What a worker does for others and for its core: it sends blocks, and reads them beside the steps."""

import logging
import threading
import time
from concurrent.futures import Future

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import unpack_u32
from worker.kv_transfer.memory import BlockMemory, PoolMemory
from worker.kv_transfer.nixl import NixlPath
from worker.kv_transfer.path import DataPath, Reading, TransferFailed
from worker.kv_transfer.tcp import TcpPath

logger = logging.getLogger(__name__)


class BlockTransfer:
    """The transfers of one worker. Methods belong to the thread of its loop."""

    def __init__(self, path: DataPath, block_bytes: int) -> None:
        self.address, self.block_bytes = path.address, block_bytes
        self._path = path
        self._readings: dict[int, tuple[Reading, threading.Thread]] = {}  # by number

    def read(self, order: worker_pb2.ReadBlocks) -> "Future[worker_pb2.BlocksRead]":
        """Reads blocks in a thread. Returns the answer to come."""
        answer: Future[worker_pb2.BlocksRead] = Future()
        reading = self._path.reading()
        thread = threading.Thread(target=_read, args=(reading, order, answer), name="blocks", daemon=True)
        for number in [number for number, (_, old) in self._readings.items() if not old.is_alive()]:
            del self._readings[number]
        self._readings[order.number] = reading, thread
        thread.start()
        return answer

    def stop(self, number: int) -> None:
        """Has a reading answered soon."""
        if number in self._readings:
            self._readings[number][0].stop()

    def stop_all(self) -> None:
        """Returns when nothing is written to any block any more."""
        for reading, _ in self._readings.values():
            reading.stop()
        for _, thread in self._readings.values():
            thread.join()
        self._readings.clear()


def open_transfer(initialize: worker_pb2.Initialize, memory: BlockMemory | None) -> BlockTransfer | None:
    """Returns the transfers of a worker that has loaded; None: it has none. memory: None: threads cannot read
    its blocks. Raises StartupError where they are to go by NIXL, which is missing."""
    if not initialize.cache_key or memory is None:
        return None
    if initialize.kv_transfer == worker_pb2.KV_TRANSFER_NIXL and isinstance(memory, PoolMemory):
        path = NixlPath(memory, initialize.cache_key, is_trusted=initialize.trusts_network)
        return BlockTransfer(path, memory.block_bytes)
    try:
        return BlockTransfer(TcpPath(memory, initialize.cache_key), memory.block_bytes)
    except OSError as error:
        logger.warning("blocks are not exchanged with other workers: %s", error.strerror)
        return None


def _read(reading: Reading, order: worker_pb2.ReadBlocks, answer: "Future[worker_pb2.BlocksRead]") -> None:
    began, problem = time.monotonic(), ""
    try:
        reading.run(order.address, unpack_u32(order.blocks), unpack_u32(order.targets))
    except TransferFailed as error:
        problem = str(error)
    except Exception as error:  # the core waits for an answer
        logger.exception("blocks cannot be read")
        problem = type(error).__name__
    duration_us = round(1e6 * (time.monotonic() - began))
    answer.set_result(worker_pb2.BlocksRead(number=order.number, problem=problem, duration_us=duration_us))
