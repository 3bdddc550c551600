"""The certificates of a port: read from PEM files at the start, and again when the files have changed.

A connection keeps the certificate that it began with; new connections get the one read last. Certificate and
key are two files: while only one of them has been replaced they do not match, and the old pair stays in use.
Files are checked with Python's ssl, also for gRPC, whose only error would be a failed handshake.
"""

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pagewire.errors import PagewireError, StartupError
from pagewire.host.file_watch import exposure, read_small, signature_of

log = logging.getLogger(__name__)

SOON_S = 14 * 24 * 3600.0
"""Seconds before a certificate's end from which on a warning is logged."""
_NOT_YET_VALID, _EXPIRED = 9, 10
"""X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED."""
_PEM = "it must be in PEM format"


class BadCertificate(PagewireError):
    """A file cannot be used; names the flag and the file, and quotes nothing of its content."""

    def __init__(self, message: str, todo: str = "") -> None:
        super().__init__(message)
        self.todo = todo


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files that flags name: PREFIX-cert, PREFIX-key and PREFIX-client-ca."""

    prefix: str
    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> list[Path]:
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]


@dataclass(frozen=True, slots=True, eq=False)
class TlsContent:
    """What the files hold: in PEM format, and as the context of a server."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


class Certificates:
    """The newest valid certificates. May be used by any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises StartupError, which names the flag."""
        self.files = files
        self._lock = threading.Lock()
        self._seen = signature_of(files.paths)
        try:
            self._content = read_content(files)
        except BadCertificate as error:
            raise StartupError("cannot use TLS", str(error), error.todo) from None
        self._warn()

    @property
    def content(self) -> TlsContent:
        """What was read last; with client_ca, clients need a certificate."""
        with self._lock:
            return self._content

    def refresh(self) -> None:
        """Reads the files again if one has changed. Blocks: call it in a thread."""
        now = signature_of(self.files.paths)
        if now == self._seen:
            return
        self._seen = now
        try:
            content = read_content(self.files)
        except BadCertificate as error:
            log.error("TLS: files have changed and cannot be used; the old ones stay: %s", error)
            return
        if signature_of(self.files.paths) != now:
            self._seen = ()  # they changed while they were read: read again at the next check
            return
        with self._lock:
            self._content = content
        log.info("TLS: new connections get what the files hold now")
        self._warn()

    def server_context(self) -> ssl.SSLContext:
        """Returns a context for a server that lives as long as its port: each handshake uses the newest
        certificate."""
        context = self.content.context

        def choose(connection: ssl.SSLObject, name: str | None, used: ssl.SSLContext) -> None:
            connection.context = self.content.context

        context.sni_callback = choose
        return context

    def _warn(self) -> None:
        for warning in warnings_about(self.files.cert, self.files.key):
            log.warning("%s-cert: %s", self.files.prefix, warning)


def read_certificates(prefix: str, cert: str, key: str, client_ca: str = "") -> Certificates | None:
    """Returns the certificates of the files that flags name; None: TLS is off. prefix: of the flags. Raises
    StartupError."""
    if not (cert or key or client_ca):
        return None
    for name, value in (("cert", cert), ("key", key)):
        if not value:
            todo = f"TLS needs {prefix}-cert and {prefix}-key"
            raise StartupError("cannot use TLS", f"{prefix}-{name} is missing", todo)
    return Certificates(TlsFiles(prefix, Path(cert), Path(key), Path(client_ca) if client_ca else None))


def read_content(files: TlsFiles) -> TlsContent:
    """Reads and checks the files. Raises BadCertificate."""
    cert, key = _bytes(f"{files.prefix}-cert", files.cert), _bytes(f"{files.prefix}-key", files.key)
    context = _checked_context(files)
    client_ca = None
    if files.client_ca is not None:
        flag = f"{files.prefix}-client-ca"
        client_ca = _bytes(flag, files.client_ca)
        if not _is_certificate(files.client_ca):
            raise BadCertificate(f"{flag} {files.client_ca} holds no certificate", _PEM)
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return TlsContent(cert, key, client_ca, context)


def warnings_about(cert: Path, key: Path, now: float | None = None) -> list[str]:
    """Returns warnings about a valid pair. now: Unix time."""
    found = []
    problem, ends = _validity(cert, key)
    if problem == _EXPIRED:
        found.append("the certificate has expired: clients will not connect")
    elif problem == _NOT_YET_VALID:
        found.append("the certificate is not valid yet: clients will not connect")
    elif ends is not None and (left := ends - (time.time() if now is None else now)) < SOON_S:
        found.append(f"the certificate expires in {max(left, 0) / 86400:.1f} days")
    if how := exposure(key, 0o004):
        found.append(f"other users of this machine can read the key: {how}; chown it, or chmod o-r")
    return found


def _bytes(flag: str, path: Path) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise BadCertificate(f"{flag} {path}: {error.strerror or type(error).__name__}") from None


def _checked_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises BadCertificate unless the key belongs to the first certificate of the chain."""
    cert, key = f"{files.prefix}-cert {files.cert}", f"{files.prefix}-key {files.key}"
    try:
        return _context(files.cert, files.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(
                f"{key} does not belong to {cert}",
                "the certificate of the server itself must be the first one in its file",
            ) from None
        if not _is_certificate(files.cert):
            raise BadCertificate(f"{cert} holds no certificate", _PEM) from None
        raise BadCertificate(
            f"{key} holds no key, or an encrypted one", f"{_PEM}, without a password"
        ) from None
    except OSError as error:
        raise BadCertificate(f"{cert}, {key}: {error.strerror or type(error).__name__}") from None


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key, password=lambda: "")  # an encrypted key must not ask the terminal
    return context


def _is_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ssl.SSLError):
        return False
    return True


def _validity(cert: Path, key: Path) -> tuple[int, float | None]:
    """Returns OpenSSL's verdict (0: valid), and the Unix time at which a valid certificate ends.

    Python parses certificates only during a handshake, so the pair performs one with itself in memory, with
    the certificate as its own authority.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = _context(cert, key).wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_code, None
        except ssl.SSLError:
            return -1, None  # Python's ssl and gRPC's need not agree on what they speak
    decoded = ours.getpeercert()
    return 0, ssl.cert_time_to_seconds(str(decoded["notAfter"])) if decoded else None
