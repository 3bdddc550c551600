"""TLS of the HTTP port: the certificate flags of the gRPC port, read again when the files change.

frontend.rpc.listening.tls checks the files first and logs what is wrong with them; here a pair that cannot be
used changes nothing.
"""

import ssl
from pathlib import Path
from typing import Any

from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.file_watch import signature_of


class TlsContext:
    """A server's TLS context whose certificate can change."""

    def __init__(self, config: FrontendConfig) -> None:
        """config: with tls_cert and tls_key. Raises StartupError."""
        self._config = config
        paths = (config.tls_cert, config.tls_key, config.tls_client_ca)
        self._paths = [Path(path) for path in paths if path]
        self._seen = signature_of(self._paths)
        try:
            self.context = self._newest = self._load()
        except (OSError, ssl.SSLError) as error:
            raise StartupError("cannot use TLS on --openai-port", str(error)) from None
        self.context.sni_callback = self._choose

    def refresh(self) -> None:
        """Reads the files again if one has changed. Blocks: call it in a thread."""
        now = signature_of(self._paths)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._newest = self._load()
        except (OSError, ssl.SSLError):
            self._seen = ()  # one of two files has been replaced: read again at the next check

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """Called by OpenSSL during each handshake."""
        connection.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._config.tls_cert, self._config.tls_key, password=lambda: "")
        if self._config.tls_client_ca:
            context.load_verify_locations(self._config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def tls_of(config: FrontendConfig) -> TlsContext | None:
    """Returns None when TLS is off. Raises StartupError."""
    return TlsContext(config) if config.tls_cert else None
