"""Makes the client of a command."""

import os
from pathlib import Path

from pagewire.command_config import ClientConfig
from pagewire.flags import UsageError
from pagewire_client.sync import Client
from pagewire_client.transport.credentials import AccessOptions

TOKEN = "PAGEWIRE_TOKEN"
"""An environment variable: flags are visible to all users in the process list."""


def connect(config: ClientConfig, model: str = "") -> Client:
    """Returns the client that the flags describe. Raises UsageError, without the token in its text."""
    options = client_options(config)
    try:
        return Client(config.address, model=model, **options)
    except ValueError as error:
        raise UsageError("cannot connect", str(error)) from None


def client_options(config: ClientConfig) -> AccessOptions:
    """Returns token and TLS as the clients' keyword arguments. Raises UsageError."""
    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError("--tls-cert and --tls-key are needed together")
    for name in ("tls_ca", "tls_cert", "tls_key"):
        read_file(name, getattr(config, name))  # for an error that names the flag
    return AccessOptions(
        token=read_token(config),
        tls=config.tls_ca or config.tls,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        tls_server_name=config.tls_server_name,
    )


def read_token(config: ClientConfig) -> str:
    """Returns the token of --token-file or of the environment; may be empty. Raises UsageError."""
    return read_file("token_file", config.token_file).strip() or os.environ.get(TOKEN, "").strip()


def read_file(name: str, path: str) -> str:
    """Returns the content of a flag's file, or an empty string if the flag is not set. Raises UsageError."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read --{name.replace('_', '-')} {path}", str(why)) from None
