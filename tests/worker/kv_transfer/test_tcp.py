"""Blocks over TCP: right bytes, or an error; whatever the other side is."""

import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from worker.kv_transfer import tcp
from worker.kv_transfer.memory import EmptyMemory, PoolMemory
from worker.kv_transfer.path import TransferFailed
from worker.kv_transfer.tcp import HOST, BlockSender, TcpReading

KEY = b"k" * 32


def memory(seed: int, num_blocks: int = 8, width: int = 6) -> PoolMemory:
    """Two pools [P, B, ...], the last block of which is for padding."""
    draw = np.random.default_rng(seed)
    shapes = (3, num_blocks + 1, 2, width), (1, num_blocks + 1, 4)
    return PoolMemory([draw.integers(0, 256, shape).astype(np.uint8) for shape in shapes])


@pytest.fixture
def source() -> PoolMemory:
    return memory(1)


@pytest.fixture
def sender(source: PoolMemory) -> Iterator[BlockSender]:
    made = BlockSender(source, KEY)
    yield made
    made.close()


def test_blocks_have_their_bytes(source: PoolMemory, sender: BlockSender) -> None:
    target, before = memory(2), memory(2)
    TcpReading(target, KEY).run(sender.address, [0, 5, 7], [3, 1, 0])
    assert [target.read(block) for block in (3, 1, 0)] == [source.read(block) for block in (0, 5, 7)]
    for block in (2, 4, 5, 6, 7, 8):
        assert target.read(block) == before.read(block)


def test_blocks_without_bytes() -> None:
    sender = BlockSender(EmptyMemory(4), KEY)
    TcpReading(EmptyMemory(4), KEY).run(sender.address, [0, 3], [1, 2])
    sender.close()


@pytest.mark.parametrize(
    ("target", "key", "blocks"),
    [
        (memory(2), b"l" * 32, [0]),
        (memory(2, width=5), KEY, [0]),
        (memory(2), KEY, [8]),
        (memory(2), KEY, [1 << 31]),
        (memory(2), KEY, list(range(8)) * 2),
    ],
    ids=["another key", "another layout", "padding", "no block", "too many"],
)
def test_a_sender_refuses(sender: BlockSender, target: PoolMemory, key: bytes, blocks: list[int]) -> None:
    before = [target.read(block) for block in range(8)]
    with pytest.raises(TransferFailed):
        TcpReading(target, key).run(sender.address, blocks, [at % 8 for at in range(len(blocks))])
    assert [target.read(block) for block in range(8)] == before


@pytest.mark.parametrize("address", ["", "10.0.0.1:5", f"{HOST}:port", "example.org:80"])
def test_only_addresses_of_this_host_are_read(address: str) -> None:
    with pytest.raises(TransferFailed, match="not of this host"):
        TcpReading(memory(2), KEY).run(address, [0], [0])


def test_a_closed_port(sender: BlockSender) -> None:
    sender.close()
    with pytest.raises(TransferFailed, match="refused"):
        TcpReading(memory(2), KEY).run(sender.address, [0], [0])


class Liar:
    """Between a reader and a sender: changes what the sender says, from a byte on."""

    def __init__(self, address: str, change: Callable[[bytearray], bytearray]) -> None:
        self._change = change
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        host, _, port = address.rpartition(":")
        self._sender = socket.create_connection((host, int(port)))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        reader, _ = self._server.accept()
        with reader, self._sender, self._server:
            reader.sendall(tcp._receive(self._sender, tcp.NONCE_BYTES))
            self._sender.sendall(tcp._receive(reader, tcp.NONCE_BYTES + 8 + tcp.MAC_BYTES))
            answer = bytearray()
            while part := self._sender.recv(1 << 16):
                answer += part
            reader.sendall(self._change(answer))


def flipped(at: int) -> Callable[[bytearray], bytearray]:
    def change(answer: bytearray) -> bytearray:
        answer[at] ^= 1
        return answer

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flipped(0), "bytes, not"),
        (flipped(10), "not what its sender has"),
        (flipped(-1), "not what its sender has"),
        (lambda answer: answer[:-1], "ended the connection"),
        (lambda answer: answer[:0], "ended the connection"),
    ],
    ids=["length", "content", "digest", "cut", "nothing"],
)
def test_a_lie_is_found(sender: BlockSender, change: Callable[[bytearray], bytearray], why: str) -> None:
    """And nothing of the block is written."""
    target = memory(2)
    before = target.read(4)
    with pytest.raises(TransferFailed, match=why):
        TcpReading(target, KEY).run(Liar(sender.address, change).address, [0], [4])
    assert target.read(4) == before


def test_an_answer_of_another_session_is_none(sender: BlockSender) -> None:
    """What was sent once cannot be sent again to another request."""
    answers: list[bytearray] = []

    def record(answer: bytearray) -> bytearray:
        answers.append(answer)
        return answer

    TcpReading(memory(2), KEY).run(Liar(sender.address, record).address, [0], [4])
    with pytest.raises(TransferFailed, match="not what its sender has"):
        TcpReading(memory(2), KEY).run(Liar(sender.address, lambda _: answers[0]).address, [0], [4])


def test_a_silent_sender_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "SILENCE_S", 0.01)
    late = pytest.raises(TransferFailed, match="(?i)timed out|timeout")
    with socket.create_server((HOST, 0)) as server, late:
        TcpReading(memory(2), KEY).run(f"{HOST}:{server.getsockname()[1]}", [0], [0])


def test_stop_ends_a_reading() -> None:
    """From another thread, while the sender says nothing."""
    with socket.create_server((HOST, 0)) as server:
        reading, failed = TcpReading(memory(2), KEY), threading.Event()

        def run() -> None:
            with pytest.raises(TransferFailed):
                reading.run(f"{HOST}:{server.getsockname()[1]}", [0], [0])
            failed.set()

        thread = threading.Thread(target=run)
        thread.start()
        connection, _ = server.accept()
        reading.stop()
        thread.join()
        connection.close()
        assert failed.is_set()


def test_a_reading_that_was_stopped_does_not_begin(sender: BlockSender) -> None:
    reading = TcpReading(memory(2), KEY)
    reading.stop()
    with pytest.raises(TransferFailed, match="it was stopped"):
        reading.run(sender.address, [0], [0])
