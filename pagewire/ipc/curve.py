"""Keys for TCP between our processes: ZeroMQ's CURVE, both sides proved.

An engine core has a key pair and a list of the clients that it lets in; a client (a frontend, a worker) has a
pair of its own and the public key of the core. Nobody without one gets so far as to send a message.
`pagewire keys FOLDER` makes one file for each side.
"""

import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
import zmq
from zmq.auth.thread import ThreadAuthenticator

from pagewire.errors import StartupError

ENGINE_FILE = "engine.key"
CLIENT_FILE = "client.key"
_KEY_CHARACTERS = 40
"""Of a key of 32 bytes in Z85."""
_FLAG = "--curve-key"
_DOMAIN = "pagewire"
"""What our sockets say of themselves to the gatekeeper."""


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What an engine core has."""

    secret: bytes
    clients: tuple[bytes, ...]
    """Public keys of those that may connect."""

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket accept only clients that prove who they are. Before bind; see also gatekeeper()."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What a frontend or a worker has."""

    secret: bytes
    public: bytes
    engine: bytes
    """Public key of the engine core."""

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Makes a socket prove who it is, to this engine core alone. Before connect."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.engine)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)


class Gatekeeper:
    """Says for all sockets of a context which clients are known. Start it before they bind."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", key: EngineKey) -> None:
        self._clients = key.clients
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """What pyzmq asks: whether a client with this public key may come in."""
        return any([hmac.compare_digest(key, known) for known in self._clients])

    def close(self) -> None:
        """Stops answering."""
        self._authenticator.stop()


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Writes a file for engine cores and one for their clients, readable by this user alone.

    Raises StartupError when one is there already: those who have it would be locked out.
    """
    engine_public, engine_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    contents: dict[str, dict[str, Any]] = {
        ENGINE_FILE: {"secret": engine_secret.decode(), "clients": [client_public.decode()]},
        CLIENT_FILE: {
            "secret": client_secret.decode(),
            "public": client_public.decode(),
            "engine": engine_public.decode(),
        },
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in contents.items():
        try:
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            why = f"{folder / name}: {error.strerror or type(error).__name__}"
            raise StartupError("cannot write the keys", why, "choose another folder") from error
        with os.fdopen(file, "w", encoding="ascii") as stream:
            yaml.safe_dump(content, stream)
    return folder / ENGINE_FILE, folder / CLIENT_FILE


def read_engine_key(path: str) -> EngineKey:
    """The file of an engine core. Raises StartupError."""
    content = _read(path)
    clients = content.get("clients")
    if not isinstance(clients, list) or not clients:
        raise _wrong(path, "clients is not a list of public keys")
    return EngineKey(_key(path, content, "secret"), tuple(_as_key(path, "clients", each) for each in clients))


def read_client_key(path: str) -> ClientKey:
    """The file of a frontend or a worker. Raises StartupError."""
    content = _read(path)
    return ClientKey(*(_key(path, content, name) for name in ("secret", "public", "engine")))


def _read(path: str) -> dict[str, Any]:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        content = yaml.safe_load(Path(path).read_text(encoding="ascii"))
    except OSError as error:
        raise _wrong(path, error.strerror or type(error).__name__) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # whose text might quote a secret
        raise _wrong(path, "it is not YAML") from error
    if mode & 0o077:
        raise StartupError(f"cannot use {_FLAG}", f"others may read {path}", f"chmod 600 {path}")
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
