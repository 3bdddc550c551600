"""The token file, which is read again when it changes."""

import logging
from pathlib import Path

from frontend.auth.token_list import BadTokenList, read_tokens
from frontend.auth.tokens import TokenTable
from pagewire.errors import StartupError
from pagewire.host.file_watch import Signature, signature_of

log = logging.getLogger(__name__)


class TokenFile:
    """Holds the last table that could be read. A broken or missing file is logged and changes nothing: it
    neither revokes tokens nor admits callers."""

    def __init__(self, path: str) -> None:
        """Raises StartupError."""
        self._path = Path(path)
        try:
            self._seen, self.table = self._read()
        except (OSError, UnicodeDecodeError, BadTokenList) as error:
            raise StartupError(
                f"cannot use --auth-file {path}",
                _why(error),
                "docs/security.md shows one; to make an entry: pagewire token new --tenant NAME",
            ) from None
        log.info("%d tokens in --auth-file", len(self.table))

    def refresh(self) -> None:
        """Reads the file again if it has changed. Blocks: call it in a thread."""
        now = signature_of([self._path])
        if now == self._seen:
            return
        self._seen = now
        try:
            self._seen, self.table = self._read()
        except (OSError, UnicodeDecodeError, BadTokenList) as error:
            log.error("--auth-file has changed and cannot be used; the old tokens stay: %s", _why(error))
        else:
            log.info("--auth-file has changed: %d tokens", len(self.table))

    def _read(self) -> tuple[Signature, TokenTable]:
        """Reads the file after taking its signature, so that a concurrent change is noticed next time."""
        signature = signature_of([self._path])
        return signature, read_tokens(self._path.read_text(encoding="utf-8"))


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
