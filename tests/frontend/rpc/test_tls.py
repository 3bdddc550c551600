"""TLS on a real port: which clients are served, what they are shown, and what happens when files change."""

import asyncio
import logging
import ssl
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from frontend.server import Frontend
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.tls import Certificates, read_certificates
from tests.frontend.fakes import engine_address
from tests.patience import PATIENCE_S


class Authority:
    """An authority, and files with what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.pem = self.ca.cert_pem.bytes()
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(self.pem)

    def issue(self, name: str = "localhost", **options) -> tuple[bytes, bytes]:
        """Certificate chain and key, PEM."""
        issued = self.ca.issue_cert(name, key_type=trustme.KeyType.ECDSA, **options)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return chain, issued.private_key_pem.bytes()

    def write(self, name: str = "localhost", **options) -> dict[str, str]:
        """The same as the files of a server, of mode 0600; the flags that name them."""
        chain, key = self.issue(name, **options)
        cert_file, key_file = self.folder / "cert.pem", self.folder / "key.pem"
        for path, content in ((cert_file, chain), (key_file, key)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return {"tls_cert": str(cert_file), "tls_key": str(key_file)}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Server:
    """A frontend with TLS and without an engine: health answers all the same."""

    def __init__(self, checkpoint, model, **config) -> None:
        self._stack = engine_address()
        address = self._stack.__enter__()
        self.config = FrontendConfig(model=str(checkpoint), port=0, engine=(address,), **config)
        self.frontend = Frontend(self.config, model)
        self.certificates = self.frontend._certificates

    async def __aenter__(self) -> "Server":
        self.port = self.frontend.open()
        await self.frontend.start()
        await self.frontend._files.stop()  # tests decide when it looks
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.frontend.stop(0)
        self._stack.__exit__(None, None, None)

    def channel(self, roots: bytes, key: bytes | None = None, chain: bytes | None = None):
        """A connection of its own."""
        credentials = grpc.ssl_channel_credentials(roots, key, chain)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials, options)

    async def check(self, roots: bytes, key: bytes | None = None, chain: bytes | None = None) -> None:
        """One call on a new connection. Raises AioRpcError."""
        async with self.channel(roots, key, chain) as channel:
            await check(channel)

    async def shown(self, roots: bytes) -> bytes:
        """The certificate that a new connection gets to see, DER."""
        context = ssl.create_default_context(cadata=roots.decode())
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("localhost", self.port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return shown


async def check(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)


async def refused(call) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    return caught.value.details()


async def test_with_tls_only_tls_is_served(checkpoint, model, authority, tmp_path_factory):
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    async with Server(checkpoint, model, **authority.write()) as server:
        await server.check(authority.pem)
        await refused(server.check(stranger.pem))
        async with grpc.aio.insecure_channel(f"localhost:{server.port}") as plain:
            await refused(check(plain))


async def test_mtls_asks_for_a_certificate_of_the_right_authority(
    checkpoint, model, authority, tmp_path_factory
):
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    chain, key = authority.issue("client")
    other_chain, other_key = stranger.issue("client")
    files = authority.write() | {"tls_client_ca": str(authority.ca_file)}
    async with Server(checkpoint, model, **files) as server:
        await server.check(authority.pem, key, chain)
        await refused(server.check(authority.pem))
        await refused(server.check(authority.pem, other_key, other_chain))


async def test_new_certificates_are_for_new_connections(checkpoint, model, authority):
    """And connections that are there go on."""
    async with Server(checkpoint, model, **authority.write()) as server:
        async with server.channel(authority.pem) as old:
            await check(old)
            before = await server.shown(authority.pem)
            assert before == await server.shown(authority.pem)
            authority.write()
            server.certificates.refresh()
            assert await server.shown(authority.pem) != before
            await check(old)
            assert old.get_state() == grpc.ChannelConnectivity.READY
        await server.check(authority.pem)


async def test_new_client_authorities_are_for_new_connections(checkpoint, model, authority, tmp_path_factory):
    next_one = Authority(tmp_path_factory.mktemp("next"))
    chain, key = authority.issue("client")
    next_chain, next_key = next_one.issue("client")
    files = authority.write() | {"tls_client_ca": str(authority.ca_file)}
    async with Server(checkpoint, model, **files) as server:
        await refused(server.check(authority.pem, next_key, next_chain))
        authority.ca_file.write_bytes(next_one.pem)
        server.certificates.refresh()
        await server.check(authority.pem, next_key, next_chain)
        await refused(server.check(authority.pem, key, chain))


@pytest.mark.parametrize("broken", ["no key", "half", "gone"])
async def test_broken_files_leave_the_old_ones_and_a_line(checkpoint, model, authority, broken, caplog):
    async with Server(checkpoint, model, **authority.write()) as server:
        before = await server.shown(authority.pem)
        key_file = Path(server.config.tls_key)
        if broken == "no key":
            key_file.write_bytes(authority.issue()[1])  # the certificate comes later
        elif broken == "half":
            key_file.write_bytes(key_file.read_bytes()[:40])
        else:
            key_file.unlink()
        with caplog.at_level(logging.ERROR):
            server.certificates.refresh()
            server.certificates.refresh()
        assert await server.shown(authority.pem) == before
        assert len(caplog.messages) == 1 and "--tls-key" in caplog.messages[0]
        authority.write()
        server.certificates.refresh()
        assert await server.shown(authority.pem) != before


async def test_the_watch_notices_by_itself(checkpoint, model, authority):
    async with Server(checkpoint, model, **authority.write()) as server:
        before = server.certificates._content
        server.frontend._files._interval = 0.01
        server.frontend._files.start()
        authority.write()
        while server.certificates._content is before:
            await asyncio.sleep(0.01)


def read(tls_cert: str = "", tls_key: str = "", tls_client_ca: str = "") -> Certificates | None:
    return read_certificates("--tls", tls_cert, tls_key, tls_client_ca)


@pytest.mark.parametrize("flag", ["tls_cert", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize("fault", ["gone", "a folder", "nonsense", "nothing"])
def test_what_cannot_be_used_is_named(authority, flag, fault):
    files = authority.write() | {"tls_client_ca": str(authority.ca_file)}
    path = Path(files[flag])
    if fault == "gone":
        path.unlink()
    elif fault == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(b"nonsense" if fault == "nonsense" else b"")
    with pytest.raises(StartupError) as caught:
        read(**files)
    assert "--" + flag.replace("_", "-") in caught.value.why and str(path) in caught.value.why


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key"])
def test_certificate_and_key_belong_together(authority, missing):
    files = authority.write() | {missing: ""}
    with pytest.raises(StartupError) as caught:
        read(**files)
    assert "--" + missing.replace("_", "-") in caught.value.why
    with pytest.raises(StartupError):
        read(tls_client_ca=str(authority.ca_file))
    assert read() is None


def test_a_key_of_another_certificate(authority):
    files = authority.write()
    Path(files["tls_key"]).write_bytes(authority.issue()[1])
    with pytest.raises(StartupError) as caught:
        read(**files)
    assert "does not belong" in caught.value.why and "--tls-key" in caught.value.why


def test_an_encrypted_key_does_not_ask_the_terminal(authority):
    from cryptography.hazmat.primitives import serialization

    files = authority.write()
    path = Path(files["tls_key"])
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    with pytest.raises(StartupError) as caught:
        read(**files)
    assert "encrypted" in caught.value.why
