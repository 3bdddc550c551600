"""Whom a client trusts, and how it shows who it is.

The token travels as metadata of each call, which works with and without TLS (gRPC's own call credentials
travel with TLS only). It goes to the addresses that the client was given, and through no proxy that could
read it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import grpc


class AccessOptions(TypedDict, total=False):
    """Keyword arguments of both clients that are about access.

    token: bearer token, or a function that returns it, which is asked for each call.
    tls: True: TLS with the authorities that gRPC trusts by itself; a path: with those of a PEM file.
    tls_cert, tls_key: PEM files, for servers that ask for a certificate (mTLS). They mean TLS, too.
    tls_server_name: name in the server's certificate, where the address is another one.
    """

    token: str | Callable[[], str]
    tls: bool | str | Path
    tls_cert: str | Path
    tls_key: str | Path
    tls_server_name: str


@dataclass(frozen=True)
class Credentials:
    """AccessOptions, checked. Its text has no token."""

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
            raise ValueError("tls_server_name means nothing without tls")
        if isinstance(self.token, str):
            _check(self.token)

    @property
    def secure(self) -> bool:
        """Whether connections use TLS."""
        return bool(self.tls or self.tls_cert)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries. Raises ValueError for a token that cannot travel."""
        token = self.token if isinstance(self.token, str) else self.token()
        _check(token)
        return (("authorization", f"Bearer {token}"),) if token else ()

    def options(self) -> list[tuple[str, int | str]]:
        """Channel options."""
        chosen: list[tuple[str, int | str]] = []
        if self.token and not self.secure:
            chosen.append(("grpc.enable_http_proxy", 0))
        if self.tls_server_name:
            chosen.append(("grpc.ssl_target_name_override", self.tls_server_name))
        return chosen

    def for_channel(self) -> grpc.ChannelCredentials:
        """For secure channels. Raises OSError."""
        roots = None if isinstance(self.tls, bool) else Path(self.tls).read_bytes()
        key = Path(self.tls_key).read_bytes() if self.tls_key else None
        chain = Path(self.tls_cert).read_bytes() if self.tls_cert else None
        return grpc.ssl_channel_credentials(roots, key, chain)


def _check(token: str) -> None:
    """gRPC would refuse it too, in words that quote it."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("a token is printable ASCII without spaces")
