"""`pagewire docs`: where an installation has the pages of this documentation."""

from pathlib import Path

from pagewire.command_config import DocsConfig
from pagewire.errors import StartupError

_PACKAGE = Path(__file__).parents[1]
FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")
"""Of an installed wheel, and of a source tree."""


def run(config: DocsConfig) -> int:
    """Prints the path of the first page. Returns 0. Raises StartupError where there are no pages."""
    first = next((page for folder in FOLDERS if (page := folder / "tutorial.md").exists()), None)
    if first is None:
        raise StartupError("cannot find the documentation", "pagewire-client has none", "install pagewire")
    print(f"{first} and the pages next to it")
    return 0


COMMANDS = {"docs": (DocsConfig, run)}
