"""S24: what people write, what they are answered, and what lets them in is in no log line and in no error.

One service with all its log lines, one marker in everything that a client can send, in requests that are
fine, that are wrong, and that are running when a process dies. Then all output of all processes is searched
for the marker, as text, as hex, as base64, as token ids.
"""

import base64
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import h2.config
import h2.connection
import pytest

from frontend.auth.tokens import digest_of, entry_line, new_token
from pagewire import Client
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2, prompt_pb2
from pagewire_client.errors import RpcError, from_grpc
from tests.e2e import services

MARKER = secrets.token_hex(16)
GENERATE = "/pagewire.v1.GenerationService/Generate"


class Loud:
    """`pagewire serve` with every log line in a file."""

    def __init__(self, folder: Path, auth_file: Path) -> None:
        self.lines = folder / "lines"
        flags = ["--port=0", "--device=simulated", "--profile=h200", "--log-level=debug"]
        with self.lines.open("wb") as lines:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pagewire", "serve", *flags, f"--auth-file={auth_file}"],
                cwd=services.ROOT,
                env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "GRPC_VERBOSITY": "debug"},
                stdout=lines,
                stderr=lines,
            )

    def wait_ready(self) -> str:
        """Its address."""
        services.wait_until(lambda: b"ready: grpc://" in self.lines.read_bytes())
        _, _, rest = self.lines.read_text().partition("ready: grpc://")
        return rest.split()[0]

    def worker(self) -> list[int]:
        """Its process."""
        return services.processes(self.process.pid).get("worker", [])

    def stop(self) -> str:
        """All lines."""
        self.process.terminate()
        self.process.wait(services.PATIENCE_S)
        return self.lines.read_text(errors="backslashreplace")


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short, as ipc demands."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        yield Path(name)


def forms(text: str) -> Iterator[str]:
    """How a text may appear."""
    data = text.encode()
    yield text
    yield data.hex()
    for shift in range(3):  # where it begins within a group of base64
        encoded = base64.b64encode(b"\0" * shift + data).decode()
        yield encoded[4 if shift else 0 : -4]


def forms_of_ids(ids: list[int]) -> Iterator[str]:
    """Six in a row, or their column."""
    for start in range(len(ids) - 5):
        window = ids[start : start + 6]
        yield ", ".join(map(str, window))
        yield " ".join(map(str, window))
        yield pack_u32(window).hex()
        yield str(pack_u32(window))[2:-1]


def wrong_requests() -> Iterator[generation_pb2.GenerateRequest]:
    """The marker where it is refused, and where it contradicts something."""
    chat = prompt_pb2.Prompt(
        chat={"messages": [{"role": MARKER, "content": [{"text": MARKER}], "name": MARKER}]}
    )
    good = {"text": MARKER}
    for fields in (
        {"prompt": chat},
        {"prompt": good, "model": MARKER},
        {"prompt": good, "tenant": MARKER},
        {"prompt": good, "request_id": MARKER * 10},
        {"prompt": good, "cache": {"salt": MARKER * 10}},
        {"prompt": good, "stopping": {"stop": [MARKER] * 1000}},
        {"prompt": good, "stopping": {"stop": [""], "max_tokens": 0}},
        {"prompt": good, "sampling": {"temperature": -1, "bad_words": [MARKER, ""]}},
        {"prompt": good, "sampling": {"n": 1 << 30}},
        {"prompt": {"text": MARKER * 10_000}},
        {"prompt": {"token_ids": {"ids": [1 << 31]}}, "request_id": MARKER},
    ):
        yield generation_pb2.GenerateRequest(**fields)
    extended = generation_pb2.GenerateRequest(prompt=good)
    extended.extensions.update({MARKER: MARKER})
    yield extended


def send_raw_headers(address: str, token: str) -> None:
    """Headers that no gRPC library would send: not UTF-8, not printable."""
    host, _, port = address.rpartition(":")
    ugly = b"\xff\xfe" + MARKER.encode() + b"\x80"
    with socket.create_connection((host, int(port)), services.PATIENCE_S) as raw:
        config = h2.config.H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        connection = h2.connection.H2Connection(config)
        connection.initiate_connection()
        common = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", address.encode())]
        common += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
        good = b"Bearer " + token.encode()
        for number, (path, extra) in enumerate(
            [
                (GENERATE.encode(), [(b"authorization", b"Bearer " + ugly)]),
                (GENERATE.encode(), [(b"authorization", good), (b"x-note", ugly)]),
                (GENERATE.encode(), [(b"authorization", good), (b"x-note-bin", b"!" + MARKER.encode())]),
                (b"/" + MARKER.encode(), [(b"authorization", good)]),
                (b"/x.Y/" + MARKER.encode(), [(b"authorization", good), (b"grpc-timeout", MARKER.encode())]),
            ]
        ):
            connection.send_headers(1 + 2 * number, [*common, (b":path", path), *extra])
            connection.send_data(1 + 2 * number, b"\0\0\0\0\x20" + MARKER.encode(), end_stream=True)
        raw.sendall(connection.data_to_send())
        raw.settimeout(1.0)
        with contextlib.suppress(OSError):
            while raw.recv(65536):
                pass


def test_no_line_and_no_error_has_what_people_send(folder: Path):
    token, forgotten = new_token(), new_token() + MARKER
    auth_file = folder / "tokens.yaml"
    auth_file.write_text("tokens:\n" + entry_line(digest_of(token), "alice", {}))
    loud = Loud(folder, auth_file)
    said: list[str] = []
    try:
        address = loud.wait_ready()
        with grpc.insecure_channel(address) as channel:
            metadata = [
                ("authorization", f"Bearer {token}"),
                ("x-note", MARKER),
                ("x-note-bin", MARKER.encode()),
            ]
            call = channel.unary_stream(GENERATE)
            for message in [
                b"\xff" + MARKER.encode(),
                *(each.SerializeToString() for each in wrong_requests()),
            ]:
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(message, metadata=metadata, timeout=services.PATIENCE_S))
                said += [str(caught.value.details()), str(from_grpc(caught.value).__dict__)]
            with pytest.raises(grpc.RpcError) as caught:
                list(call(b"", metadata=[("authorization", f"Bearer {forgotten}")]))
            said.append(str(caught.value.details()))
        send_raw_headers(address, token)
        prompt, ids = f"{MARKER} is a secret, {MARKER}", []
        with Client(address, token=token) as client:
            options = {"max_tokens": 400, "ignore_eos": True, "stop": [MARKER + "!"], "cache_salt": MARKER}
            ids = list(client.tokenize(prompt).token_ids)
            with client.stream(prompt, request_id="chosen", echo=True, **options) as stream:
                next(stream)
                before = loud.worker()
                os.kill(before[0], signal.SIGKILL)
                result = stream.result()
            assert result.usage.completion_tokens == 400
            services.wait_until(lambda: loud.worker() not in ([], before))
            with contextlib.suppress(RpcError):
                client.generate([{"role": "user", "content": MARKER}], max_tokens=3)
    finally:
        lines = loud.stop()
    assert "DEBUG" in lines and "worker" in lines
    for place in (lines, "\n".join(said)):
        for form in [*forms(MARKER), token, token[3:], forgotten, *forms_of_ids(ids)]:
            assert form not in place
    for form in forms_of_ids(list(result.outputs[0].token_ids)[:100]):
        assert form not in lines
