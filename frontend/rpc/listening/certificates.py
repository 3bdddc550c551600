"""Checks certificate files with Python's ssl before gRPC gets them, whose only error would be a failed
handshake."""

import ssl
import time
from pathlib import Path

from pagewire.errors import PagewireError

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


def check_pair(cert: Path, key: Path) -> None:
    """Raises BadCertificate unless the key belongs to the first certificate of the chain."""
    try:
        _server_context(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(
                f"--tls-key {key} does not belong to --tls-cert {cert}",
                "the certificate of the server itself must be the first one in its file",
            ) from None
        if not _is_certificate(cert):
            raise BadCertificate(f"--tls-cert {cert} holds no certificate", _PEM) from None
        raise BadCertificate(
            f"--tls-key {key} holds no key, or an encrypted one",
            f"{_PEM}, without a password",
        ) from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise BadCertificate(f"--tls-cert {cert}, --tls-key {key}: {why}") from None


def check_authorities(path: Path) -> None:
    """Raises BadCertificate unless the file holds certificates of authorities."""
    if not _is_certificate(path):
        raise BadCertificate(f"--tls-client-ca {path} holds no certificate", _PEM)


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
    if key.stat().st_mode & 0o004:
        found.append("every user on this machine can read the key: chmod o-r it")
    return found


def _server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
    theirs = _server_context(cert, key).wrap_bio(to_server, to_client, server_side=True)
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
