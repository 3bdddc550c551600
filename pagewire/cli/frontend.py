"""`pagewire frontend`."""

from pagewire import logs
from pagewire.config import FrontendConfig

CONFIG = FrontendConfig


def run(config: FrontendConfig) -> int:
    """Serves gRPC until a signal; returns the exit code."""
    logs.setup("frontend", config.log_level)
    from frontend.main import run as run_frontend

    return run_frontend(config)
