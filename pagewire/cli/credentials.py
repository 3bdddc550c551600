"""`pagewire token` and `pagewire keys`."""

import os
import sys
from pathlib import Path
from typing import Any

from pagewire.cli.extras import require
from pagewire.command_config import TokenConfig
from pagewire.config import KeysConfig
from pagewire.flags import UsageError


def make_keys(config: KeysConfig) -> int:
    """Writes the two key files and prints how to use them; returns the exit code."""
    require("frontend", "make keys")
    from pagewire.ipc import curve

    if not config.folder:
        raise UsageError("FOLDER is missing", todo="pagewire keys FOLDER")
    engine, client = curve.make_keys(Path(config.folder))
    print(f"{engine}  for engine cores: --curve-key {engine}")
    print(f"{client}  for frontends and workers: --curve-key {client}")
    return 0


def make_token(config: TokenConfig) -> int:
    """Prints the token to standard output only; its entry goes to --auth-file, or to standard error."""
    require("frontend", "make a token")
    from frontend.auth.tokens import BadTokenList, digest_of, entry_line, new_token, tenant_problem

    if config.action != "new":
        raise UsageError(f"unknown action {config.action!r}", todo="pagewire token new --tenant NAME")
    if not config.tenant:
        raise UsageError("--tenant is missing", todo="pagewire token new --tenant NAME")
    if (problem := tenant_problem(config.tenant)) is not None:
        raise UsageError(f"wrong --tenant {config.tenant!r}", problem)
    token = new_token()
    try:
        line = entry_line(digest_of(token), config.tenant, _fields(config))
        if config.auth_file:
            _add(Path(config.auth_file), line)
            print(f"added to {config.auth_file}; the token, which is stored nowhere else:", file=sys.stderr)
        else:
            print(f"for the list `tokens:` of --auth-file:\n{line}and the token:", file=sys.stderr)
    except BadTokenList as error:
        raise UsageError("cannot make the token's line", str(error)) from None
    print(token)
    return 0


def _fields(config: TokenConfig) -> dict[str, Any]:
    """Returns the optional fields that are set."""
    names = ("weight", "max_requests", "max_tokens_per_minute", "max_sequences", "min_priority")
    fields = {name: value for name in names if (value := getattr(config, name)) is not None}
    if config.role != "user":
        fields["role"] = config.role
    if config.expires:
        fields["expires"] = config.expires
    return fields


def _add(path: Path, line: str) -> None:
    """Replaces the file at once: a server that reads it meanwhile gets the old one or the new one. Raises
    UsageError, BadTokenList."""
    from frontend.auth.tokens import add_line

    path = path.resolve()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        mode = path.stat().st_mode if path.exists() else 0o600
        text = add_line(path.read_text(encoding="utf-8") if path.exists() else "", line)
        try:
            new.touch(mode=0o600, exist_ok=False)
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # a crash of the machine leaves the old file or the new one
            new.chmod(mode & 0o777)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot write --auth-file {path}", str(why)) from None


COMMANDS = {"token": (TokenConfig, make_token), "keys": (KeysConfig, make_keys)}
