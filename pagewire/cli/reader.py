"""`pagewire reader`: internal, started by frontends."""

from pagewire.config import FrontendConfig
from pagewire.logs import process_log

CONFIG = FrontendConfig


def run(config: FrontendConfig) -> int:
    """Tokenizes prompts for the frontend that started it; returns the exit code."""
    process_log.setup("reader", config.log_level)
    from frontend.prompts.process import run as run_reader

    return run_reader(config)
