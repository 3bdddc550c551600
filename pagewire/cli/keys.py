"""`pagewire keys`."""

from pathlib import Path

from pagewire.config import KeysConfig
from pagewire.flags import UsageError
from pagewire.ipc.curve import make_keys

CONFIG = KeysConfig


def run(config: KeysConfig) -> int:
    """Writes the two key files and prints how to use them; returns the exit code."""
    if not config.folder:
        raise UsageError("FOLDER is missing", todo="pagewire keys FOLDER")
    engine, client = make_keys(Path(config.folder))
    print(f"{engine}  for engine cores: --curve-key {engine}")
    print(f"{client}  for frontends and workers: --curve-key {client}")
    return 0
