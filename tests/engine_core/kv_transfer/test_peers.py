"""Connections to other engine cores."""

from pathlib import Path

import zmq

from engine_core.kv_transfer.peers import PeerSockets
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage, LeaseBlocks, LeaseEnded
from pagewire.ipc.transport import bind_router, frontends_address, pack, send_to, unpack
from tests.patience import PATIENCE_S, wait_until

ASKED = FrontendMessage(lease_blocks=LeaseBlocks(lease=3))
ANSWER = EngineMessage(lease_ended=LeaseEnded(lease=3, stands=True))


def test_messages_there_and_back(tmp_path: Path) -> None:
    """Frames that make no sense are dropped."""
    tmp_path.chmod(0o700)
    address = frontends_address(tmp_path)
    with zmq.Context() as context, bind_router(context, address) as router:
        peers = PeerSockets(context)
        assert peers.send(address, ASKED)
        assert router.poll(int(1000 * PATIENCE_S))
        peer, frame = router.recv_multipart()
        assert FrontendMessage.FromString(unpack(frame)) == ASKED
        for answer in (b"", b"\xff", b"\x01\xff", pack(ANSWER)):
            send_to(router, peer, answer)
        taken: list[tuple[str, EngineMessage]] = []
        wait_until(lambda: taken.extend(peers.take()) or taken)
        assert taken == [(address, ANSWER)]
        peers.close(address)
        peers.close(address)
        assert peers.take() == []
        peers.close_all()


def test_an_address_that_cannot_be_used() -> None:
    """TCP needs keys, and anything else is refused."""
    with zmq.Context() as context:
        peers = PeerSockets(context)
        assert not any(peers.send(address, ASKED) for address in ("", "nonsense", "tcp://127.0.0.1:1"))
