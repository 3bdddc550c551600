"""`pagewire frontend`."""

from pagewire import logs
from pagewire.config import FrontendConfig

CONFIG = FrontendConfig


def run(config: FrontendConfig) -> int:
    """Serves gRPC until a signal; returns the exit code."""
    logs.setup(config.process_name or "frontend", config.log_level, config.log_format)
    from frontend.main import run as run_frontend

    return run_frontend(config)
