"""Blocks over TCP, between the workers of one host.

    sender   -> reader    its nonce, 16 bytes
    reader   -> sender    its nonce, 16 bytes; the number of blocks and the blocks, uint32 each; a MAC of all
                          of this and of the layout
    sender   -> reader    for each block: its length, uint32; its bytes; a MAC of both, behind the session and
                          its index in the request

The session is the two nonces. MACs are keyed by --prefix-cache-key, so neither side talks to a process that
does not have the key; what is sent is not encrypted. Nothing that arrives is interpreted but numbers whose
range is checked. Every wait has a deadline.
"""

import hmac
import logging
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from secrets import token_bytes

from worker.kv_transfer.memory import BlockMemory
from worker.kv_transfer.path import TransferFailed, transfer_key

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
SILENCE_S = 2.0
"""Without a byte of the other side for so long, a connection ends."""
MOST_BLOCKS = 1 << 20
"""In one request."""
MOST_CONNECTIONS = 16
NONCE_BYTES, MAC_BYTES = 16, 32
_COUNT, _U32 = struct.Struct("<I"), 4


class BlockSender:
    """Sends blocks to readers that have the key, from a port that the system chooses, until close()."""

    def __init__(self, memory: BlockMemory, key: bytes) -> None:
        """Raises OSError when there is no port."""
        self._memory, self._key = memory, transfer_key(key)
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        threading.Thread(target=self._accept, name="blocks", daemon=True).start()

    def close(self) -> None:
        """Ends the thread; connections go on."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # close() was called
            threading.Thread(target=self._serve, args=(connection,), name="blocks", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with closing(connection):
                connection.settimeout(SILENCE_S)
                self._answer(connection)
        except (OSError, TransferFailed) as error:
            logger.info("another worker got no blocks: %s", error)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket) -> None:
        own = token_bytes(NONCE_BYTES)
        connection.sendall(own)
        theirs = _receive(connection, NONCE_BYTES)
        count = _COUNT.unpack(numbers := _receive(connection, _U32))[0]
        if count > min(MOST_BLOCKS, self._memory.num_blocks):
            raise TransferFailed(f"it asks for {count} blocks")
        numbers += _receive(connection, _U32 * count)
        session = own + theirs
        expected = _mac(self._key, session, self._memory.layout, numbers)
        if not hmac.compare_digest(expected, _receive(connection, MAC_BYTES)):
            raise TransferFailed("its key or its cache is another one")
        for index, block in enumerate(struct.unpack(f"<{count}I", numbers[_U32:])):
            if block >= self._memory.num_blocks:
                raise TransferFailed(f"there is no block {block}")
            content = self._memory.read(block)
            length = _COUNT.pack(len(content))
            connection.sendall(length + content + _block_mac(self._key, session, index, content))


class TcpPath:
    """TCP over the loopback interface. A DataPath."""

    def __init__(self, memory: BlockMemory, key: bytes) -> None:
        """key: as Initialize.cache_key. Raises OSError."""
        self._memory, self._key = memory, key
        self._sender = BlockSender(memory, key)
        self.address = self._sender.address

    def reading(self) -> "TcpReading":
        return TcpReading(self._memory, self._key)


class TcpReading:
    """A connection that reads blocks, once. A Reading."""

    def __init__(self, memory: BlockMemory, key: bytes) -> None:
        self._memory, self._key = memory, transfer_key(key)
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._is_stopped = False

    def run(self, address: str, blocks: Sequence[int], targets: Sequence[int]) -> None:
        host, _, port = address.rpartition(":")
        if host != HOST or not port.isdecimal():
            raise TransferFailed(f"{address!r} is not of this host")
        if any(target >= self._memory.num_blocks for target in targets):
            raise TransferFailed("a target is no block")
        try:
            connection = socket.create_connection((host, int(port)), SILENCE_S)
            with closing(connection), self._watched(connection):
                self._read(connection, blocks, targets)
        except OSError as error:
            raise TransferFailed(error.strerror or type(error).__name__) from error

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _watched(self, connection: socket.socket) -> Iterator[None]:
        """While the context lasts, stop() ends this connection."""
        with self._lock:
            if self._is_stopped:
                raise TransferFailed("it was stopped")
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def _read(self, connection: socket.socket, blocks: Sequence[int], targets: Sequence[int]) -> None:
        theirs, own = _receive(connection, NONCE_BYTES), token_bytes(NONCE_BYTES)
        numbers = struct.pack(f"<{len(blocks) + 1}I", len(blocks), *blocks)
        session = theirs + own
        connection.sendall(own + numbers + _mac(self._key, session, self._memory.layout, numbers))
        for index, target in enumerate(targets):
            length = _COUNT.unpack(_receive(connection, _U32))[0]
            if length != self._memory.block_bytes:
                raise TransferFailed(f"a block has {length} bytes, not {self._memory.block_bytes}")
            content = _receive(connection, length)
            expected = _block_mac(self._key, session, index, content)
            if not hmac.compare_digest(expected, _receive(connection, MAC_BYTES)):
                raise TransferFailed("a block is not what its sender has")
            self._memory.write(target, content)


def _receive(connection: socket.socket, count: int) -> bytes:
    """Returns so many bytes. Raises TransferFailed at the end of the connection, OSError."""
    parts = bytearray(count)
    view, at = memoryview(parts), 0
    while at < count:
        received = connection.recv_into(view[at:])
        if not received:
            raise TransferFailed("the other worker has ended the connection")
        at += received
    return bytes(parts)


def _mac(key: bytes, *parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=MAC_BYTES, key=key).digest()


def _block_mac(key: bytes, session: bytes, index: int, content: bytes) -> bytes:
    return _mac(key, session, _COUNT.pack(index), _COUNT.pack(len(content)), content)
