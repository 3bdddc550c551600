"""TLS of the HTTP port. The files are read again when they have changed, at the next connection."""

import logging
import os
import ssl

from pagewire.errors import StartupError

log = logging.getLogger(__name__)

_Signature = tuple[tuple[int, int, int], ...]


class HttpTls:
    """The certificate of the HTTP port. Files that cannot be used leave the old ones in use."""

    def __init__(self, cert: str, key: str) -> None:
        """cert: PEM file, the server's certificate first. Raises StartupError."""
        self._files = cert, key
        try:
            self._seen = self._signature()
            self._context = self._read()
        except OSError as error:  # SSLError is one, too
            raise StartupError(
                f"cannot use --http-tls-cert {cert} with --http-tls-key {key}",
                _why(error),
                "both are PEM files, and the key is that of the first certificate",
            ) from None

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        try:
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                self._context = self._read()
                log.info("--http-tls-cert has changed: new connections get it")
        except OSError as error:
            log.error("--http-tls-cert has changed and cannot be used; the old one stays: %s", _why(error))
        return self._context

    def _signature(self) -> _Signature:
        stats = [os.stat(path) for path in self._files]
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in stats)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files, password=lambda: b"")
        return context


def make_http_tls(cert: str, key: str) -> HttpTls | None:
    """Returns what --http-tls-cert and --http-tls-key ask for; None: no TLS. Raises StartupError."""
    if bool(cert) != bool(key):
        missing = "--http-tls-key" if cert else "--http-tls-cert"
        raise StartupError(
            f"{missing} is missing", "TLS takes a certificate and its key", f"add {missing} FILE"
        )
    return HttpTls(cert, key) if cert else None


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM files that belong together"
    return error.strerror or type(error).__name__
