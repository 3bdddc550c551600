"""TLS: the certificates of the gRPC port, which are read again when their files change.

A connection keeps the certificate that it began with; new connections get the one read last. Certificate and
key are two files: while only one of them has been replaced they do not match, and the old pair stays in use.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from frontend.rpc.listening.certificates import BadCertificate, check_authorities, check_pair, warnings_about
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.file_watch import signature_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that the flags name."""

    cert: Path
    key: Path
    client_ca: Path | None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """The files' content, in PEM format."""

    cert: bytes
    key: bytes
    client_ca: bytes | None

    @property
    def configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.client_ca)


class Certificates:
    """The newest valid certificates."""

    def __init__(self, files: _Files) -> None:
        """Raises StartupError, which names the flag."""
        self._files = files
        self._lock = threading.Lock()  # gRPC fetches in threads of its own
        self._seen = signature_of(files.paths)
        try:
            self._content = self._served = _read(files)
        except BadCertificate as error:
            raise StartupError("cannot use TLS", str(error), error.todo) from None
        self._warn()

    def refresh(self) -> None:
        """Reads the files again if one has changed. Blocks: call it in a thread."""
        now = signature_of(self._files.paths)
        if now == self._seen:
            return
        self._seen = now
        try:
            content = _read(self._files)
        except BadCertificate as error:
            log.error("TLS: files have changed and cannot be used; the old ones stay: %s", error)
            return
        if signature_of(self._files.paths) != now:
            self._seen = ()  # they changed while they were read: read again at the next check
            return
        with self._lock:
            self._content = content
        log.info("TLS: new connections get what the files hold now")
        self._warn()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of the server's port. With --tls-client-ca, clients need a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._content.configuration,
            self._fetch,  # type: ignore[arg-type]  # its types omit None, which means no change
            self._files.client_ca is not None,
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: nothing has changed since the last call."""
        with self._lock:
            if self._served is self._content:
                return None
            self._served = self._content
            return self._content.configuration

    def _warn(self) -> None:
        for warning in warnings_about(self._files.cert, self._files.key):
            log.warning("--tls-cert: %s", warning)


def certificates_of(config: FrontendConfig) -> Certificates | None:
    """Returns None when TLS is off. Raises StartupError."""
    if not (config.tls_cert or config.tls_key or config.tls_client_ca):
        return None
    for flag, value in (("--tls-cert", config.tls_cert), ("--tls-key", config.tls_key)):
        if not value:
            raise StartupError("cannot use TLS", f"{flag} is missing", "TLS needs --tls-cert and --tls-key")
    client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
    return Certificates(_Files(Path(config.tls_cert), Path(config.tls_key), client_ca))


def _read(files: _Files) -> _Content:
    """Raises BadCertificate."""
    cert, key = _bytes("--tls-cert", files.cert), _bytes("--tls-key", files.key)
    check_pair(files.cert, files.key)
    client_ca = None
    if files.client_ca is not None:
        client_ca = _bytes("--tls-client-ca", files.client_ca)
        check_authorities(files.client_ca)
    return _Content(cert, key, client_ca)


def _bytes(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"{flag} {path}: {error.strerror or type(error).__name__}") from None
