"""What a service tells its terminal or log: progress of loading, and that other machines can reach it."""

import contextlib
import logging
import time
from typing import TextIO

from pagewire.config import NO_PORT, FrontendConfig
from pagewire.host.addresses import is_loopback

_CLEAR = "\r\x1b[K"
_QUIET_S = 5.0
_BAR = 30
"""Characters between the brackets of a bar."""


def tell(text: str, stream: TextIO | None, end: str = "\n") -> None:
    """Writes and flushes. A stream that takes nothing, as on a full disk, does not end the service."""
    if stream is not None:
        with contextlib.suppress(OSError):
            print(text, file=stream, flush=True, end=end)


class LoadingLine:
    """Progress as one rewritten bar on a terminal, and elsewhere as a line per item, and one every 5 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last = ("", 0.0)
        self._dirty = False

    def show(self, what: str, fraction: float) -> None:
        """Shows progress. what: the item, such as "weights". fraction: 0 to 1."""
        if self._terminal:
            done = "#" * int(_BAR * fraction)
            tell(f"{_CLEAR}loading {what:<17} [{done:<{_BAR}}] {fraction:4.0%}", self._stream, end="")
            self._dirty = True
        elif what != self._last[0]:
            self._last = what, time.monotonic()
            tell(f"loading {what}", self._stream)
        elif time.monotonic() > self._last[1] + _QUIET_S:
            self._last = what, time.monotonic()
            tell(f"loading {what} {fraction:4.0%}", self._stream)

    def clear(self) -> None:
        if self._dirty:
            tell(_CLEAR, self._stream, end="")
            self._dirty = False


log = logging.getLogger(__name__)


def log_exposure(config: FrontendConfig) -> None:
    """Logs a warning when other machines can call the service without a token or read its traffic."""
    if config.http_port != NO_PORT and not is_loopback(config.http_host):
        log.warning("any host that reaches %s may read the metrics of this service", config.http_host)
    warning = exposure(config)
    if warning is not None:
        log.warning("%s", warning)
    elif is_loopback(config.host):
        log.info("only this machine can connect; --host opens it to others (docs/security.md)")


def exposure(config: FrontendConfig) -> str | None:
    """Returns the warning, or None."""
    hosts = [config.host] if config.openai_port is None else [config.host, config.openai_host]
    host = next((host for host in hosts if not is_loopback(host)), None)
    if host is None:
        return None
    open_to_all = not config.auth_file and not config.tls_client_ca
    plain = not config.tls_cert
    if open_to_all:
        listeners = " and read its traffic" if plain else ""
        return (
            f"any host that reaches {host} may use this service{listeners}: there is no --auth-file"
            f"{' and no --tls-cert' if plain else ''} (docs/security.md)"
        )
    if plain:
        return f"tokens and prompts travel in plain text to {host}: there is no --tls-cert"
    return None
