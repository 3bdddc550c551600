"""TLS and token of a client.

The token is sent as metadata of each call, with and without TLS (gRPC's own call credentials require TLS). It
is sent to the client's addresses only, and never through a proxy that could read it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import grpc


class AccessOptions(TypedDict, total=False):
    """Keyword arguments of both clients for authentication.

    token: bearer token, or a function that returns it, called for each call.
    tls: True: TLS with gRPC's default certificate authorities; a path: with those of a PEM file.
    tls_cert, tls_key: PEM files for servers that require a client certificate (mTLS). They imply TLS.
    tls_server_name: name in the server's certificate, if it differs from the address.
    """

    token: str | Callable[[], str]
    tls: bool | str | Path
    tls_cert: str | Path
    tls_key: str | Path
    tls_server_name: str


@dataclass(frozen=True)
class Credentials:
    """Validated AccessOptions. The repr does not contain the token."""

    token: str | Callable[[], str] = field(default="", repr=False)
    tls: bool | str | Path = False
    tls_cert: str | Path = ""
    tls_key: str | Path = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key are needed together")
        if self.tls_server_name and not self.secure:
            raise ValueError("tls_server_name has no meaning without tls")
        if isinstance(self.token, str):
            _check(self.token)

    @property
    def secure(self) -> bool:
        return bool(self.tls or self.tls_cert)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata of a call. Raises ValueError for a token that cannot be sent."""
        token = self.token if isinstance(self.token, str) else self.token()
        _check(token)
        return (("authorization", f"Bearer {token}"),) if token else ()

    def options(self) -> list[tuple[str, int | str]]:
        """Returns the channel options."""
        chosen: list[tuple[str, int | str]] = []
        if self.token and not self.secure:
            chosen.append(("grpc.enable_http_proxy", 0))
        if self.tls_server_name:
            chosen.append(("grpc.ssl_target_name_override", self.tls_server_name))
        return chosen

    def for_channel(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a secure channel. Raises OSError."""
        roots = None if isinstance(self.tls, bool) else Path(self.tls).read_bytes()
        key = Path(self.tls_key).read_bytes() if self.tls_key else None
        chain = Path(self.tls_cert).read_bytes() if self.tls_cert else None
        return grpc.ssl_channel_credentials(roots, key, chain)


def _check(token: str) -> None:
    """Raises ValueError without quoting the token, as gRPC's own error would."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("a token is printable ASCII without spaces")
