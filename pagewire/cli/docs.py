"""`pagewire docs`."""

from pagewire import docs_site
from pagewire.command_config import DocsConfig

CONFIG = DocsConfig


def run(config: DocsConfig) -> int:
    """Serves the documentation until Ctrl-C. Returns 0. Raises StartupError."""
    docs_site.serve(docs_site.ARCHIVE, config.port)
    return 0
