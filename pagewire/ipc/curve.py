"""Keys for TCP between the processes of a service: ZeroMQ's CURVE, with mutual authentication.

An engine core has a key pair and a list of the clients that may connect; a client (a frontend, a worker) has
its own pair and the public key of the core. Engine cores that share a file may connect to one another. A peer
without a key cannot send a message.
`pagewire keys FOLDER` makes one file for each side.
"""

import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
import zmq
from zmq.auth.thread import ThreadAuthenticator

from pagewire.errors import StartupError
from pagewire.host.file_watch import exposure, read_small

ENGINE_FILE = "engine.key"
CLIENT_FILE = "client.key"
_KEY_CHARACTERS = 40
"""Length of a key of 32 bytes in Z85."""
_FLAG = "--curve-key"
_DOMAIN = "pagewire"
"""ZAP domain of our sockets."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """The keys of an engine core."""

    secret: bytes
    clients: tuple[bytes, ...]
    """Public keys of the clients that may connect."""

    @property
    def public(self) -> bytes:
        """Its own public key."""
        return zmq.curve_public(self.secret)

    def as_client(self) -> "ClientKey":
        """Returns the keys with which it connects to an engine core that has the same file."""
        return ClientKey(self.secret, self.public, self.public)

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket accept authenticated clients only. To be called before bind; needs a
        CurveAuthenticator in the context."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The keys of a frontend or a worker."""

    secret: bytes
    public: bytes
    engine: bytes
    """Public key of the engine core."""

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket authenticate itself, to this engine core only. To be called before connect."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.engine)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)


class CurveAuthenticator:
    """Decides for all sockets of a context which clients may connect. To be made before they bind."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key: EngineKey) -> None:
        self._clients = (*key.clients, key.public)
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Returns True if a client with this public key may connect; called by pyzmq."""
        return any([hmac.compare_digest(key, known) for known in self._clients])

    def close(self) -> None:
        self._authenticator.stop()


def make_keys(folder: Path, engine: EngineKey | None = None) -> tuple[Path, Path]:
    """Writes a file for engine cores and one for their clients, readable by this user only. engine: keys of
    engine cores that get one more client; None: new ones.

    Raises StartupError if a file exists already: processes that use it would be locked out.
    """
    engine = engine or EngineKey(zmq.curve_keypair()[1], ())
    client_public, client_secret = zmq.curve_keypair()
    clients = (*engine.clients, client_public)
    contents: dict[str, dict[str, Any]] = {
        ENGINE_FILE: {"secret": engine.secret.decode(), "clients": [each.decode() for each in clients]},
        CLIENT_FILE: {
            "secret": client_secret.decode(),
            "public": client_public.decode(),
            "engine": engine.public.decode(),
        },
    }
    for name, content in contents.items():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w", encoding="ascii") as stream:
                yaml.safe_dump(content, stream)
        except OSError as error:
            why = f"{folder / name}: {error.strerror or type(error).__name__}"
            raise StartupError("cannot write the keys", why, "choose another folder") from error
    return folder / ENGINE_FILE, folder / CLIENT_FILE


def read_engine_key(path: str) -> EngineKey:
    """Reads the key file of an engine core. Raises StartupError."""
    content = _read(path)
    clients = content.get("clients")
    if not isinstance(clients, list) or not clients:
        raise _wrong(path, "clients is not a list of public keys")
    return EngineKey(_key(path, content, "secret"), tuple(_as_key(path, "clients", each) for each in clients))


def read_client_key(path: str) -> ClientKey:
    """Reads the key file of a frontend or a worker. Raises StartupError."""
    content = _read(path)
    return ClientKey(*(_key(path, content, name) for name in ("secret", "public", "engine")))


def _read(path: str) -> dict[str, Any]:
    try:
        how = exposure(Path(path), 0o077)
        content = yaml.safe_load(read_small(Path(path)).decode("ascii"))
    except OSError as error:
        raise _wrong(path, error.strerror or type(error).__name__) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # the exception's text might quote a secret
        raise _wrong(path, "it is not YAML") from error
    if how:
        raise StartupError(
            f"cannot use {_FLAG}", f"others may read {path}: {how}", f"chown it, or chmod 600 {path}"
        )
    if not isinstance(content, dict):
        raise _wrong(path, "it is not a file of keys")
    return content


def _key(path: str, content: dict[str, Any], name: str) -> bytes:
    if name not in content:
        raise _wrong(path, f"it has no {name}: perhaps it is the file of the other side")
    return _as_key(path, name, content[name])


def _as_key(path: str, name: str, value: Any) -> bytes:
    if not isinstance(value, str) or len(value) != _KEY_CHARACTERS or not value.isascii():
        raise _wrong(path, f"{name} is not a key of {_KEY_CHARACTERS} characters")
    return value.encode("ascii")


def _wrong(path: str, why: str) -> StartupError:
    return StartupError(f"cannot use {_FLAG}", f"{path}: {why}", "make the files with: pagewire keys FOLDER")
