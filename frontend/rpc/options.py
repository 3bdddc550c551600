"""The listening address, the credentials and the options of the gRPC server."""

import threading

import grpc

from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.tls import Certificates, TlsContent

MAX_SEND_BYTES = 64 << 20
MAX_STREAMS = 4096
"""Of a connection, at least. Clients wait when they reach it, instead of being told to retry elsewhere."""
PING_INTERVAL_MS = 5_000
"""Minimum interval of clients' pings, with and without calls."""


def bind(
    server: grpc.aio.Server, config: FrontendConfig, port: int, certificates: Certificates | None
) -> int:
    """Opens the port, or a free one when it is 0; returns its number. Opens --loopback-port, too.
    certificates: None: no TLS. Raises StartupError."""
    address = f"{host_in_address(config.host)}:{port}"
    try:
        if config.loopback_port is not None:
            server.add_insecure_port(f"127.0.0.1:{config.loopback_port}")
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(certificates))
    except RuntimeError as error:
        raise StartupError(
            f"cannot listen on {address}",
            "the address is in use or is not this machine's",
            "choose another --port (0: a free one) or --host",
        ) from error


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Returns credentials for a port: each handshake uses the newest certificate. With --tls-client-ca,
    clients need a certificate."""
    served, lock = certificates.content, threading.Lock()  # gRPC fetches in threads of its own

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None: nothing has changed since the last call."""
        nonlocal served
        with lock:
            if served is certificates.content:
                return None
            served = certificates.content
            return _configuration(served)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        fetch,  # type: ignore[arg-type]  # its types omit None, which means no change
        served.client_ca is not None,
    )


def _configuration(content: TlsContent) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(content.key, content.cert)], content.client_ca)


def host_in_address(host: str) -> str:
    """Returns a host as it is written before ":port"."""
    return f"[{host}]" if ":" in host else host


def server_options(config: FrontendConfig) -> list[tuple[str, int]]:
    """Returns gRPC's options. Times are in milliseconds."""
    return [
        # When on, a second server on the port is no error.
        ("grpc.so_reuseport", int(config.reuse_port)),
        ("grpc.max_receive_message_length", config.max_request_bytes),
        # With probes of the bandwidth gRPC accepts megabytes of each call that waits for its turn to be
        # received; without them, 64 KiB until then.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_send_message_length", MAX_SEND_BYTES),
        # Per connection: bounds what gRPC itself keeps for a client that opens and resets streams.
        ("grpc.max_concurrent_streams", max(config.max_concurrent_requests, MAX_STREAMS)),
        # Clients that wait long for a first token keep their connections alive with pings; C-core
        # would disconnect them after the third one.
        # (A name that gRPC does not know is no error: tests/frontend/test_pings.py pings.)
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients that vanish silently hold KV blocks until a ping fails.
        ("grpc.keepalive_time_ms", round(1000 * config.keepalive_time)),
        ("grpc.keepalive_timeout_ms", round(1000 * config.keepalive_timeout)),
        # gRPC waits a minute for the answer to a ping, regardless of the option before this one.
        ("grpc.http2.ping_timeout_ms", round(1000 * config.keepalive_timeout)),
    ]
