"""Real processes and sockets around an engine core: a spawn for the fake worker, a fake frontend."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import zmq

from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage, Hello
from pagewire.ipc import transport
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def python(module: str, *arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    """`python -m MODULE ARGUMENTS`, in the source tree."""
    environment = {**os.environ, **options.pop("env", {}), "PYTHONPATH": str(ROOT)}  # type: ignore[dict-item]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-P", "-m", module, *arguments], cwd=ROOT, env=environment, **options
    )


def spawn_fake_worker(arguments: Sequence[str]) -> "tuple[subprocess.Popen[bytes], int]":
    """As pagewire.host.spawn.spawn, with the fake worker."""
    reading, writing = os.pipe()
    environment = {"PAGEWIRE_STATUS_FD": str(writing), "PAGEWIRE_PARENT_PID": str(os.getpid())}
    child = python("tests.engine_core.fake_worker_process", *arguments, env=environment, pass_fds=(writing,))
    os.close(writing)
    return child, reading


class FakeFrontend:
    """A DEALER that speaks engine.proto."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> None:
        self.identity = transport.new_identity()
        self.socket = transport.connect_dealer(context, address, self.identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, **message: object) -> None:
        """Sends one message, named by its field."""
        self.socket.send(transport.pack(FrontendMessage(**message)))  # type: ignore[arg-type]

    def receive(self) -> EngineMessage:
        """The next message."""
        assert self.socket.poll(int(1000 * PATIENCE_S)), "nothing came"
        return EngineMessage.FromString(transport.unpack(self.socket.recv()))

    def hello(self) -> EngineMessage:
        """Sends Hello; returns the Welcome."""
        self.send(hello=Hello(frontend_id=self.identity.hex()))
        message = self.receive()
        assert message.HasField("welcome")
        return message
