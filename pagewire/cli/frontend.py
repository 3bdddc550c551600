"""`pagewire frontend`."""

import os

from pagewire.cli.common.extras import require_doors
from pagewire.config import FrontendConfig
from pagewire.flags import UsageError
from pagewire.host import spawn as process
from pagewire.logs import process_log
from pagewire.supervisor.exposure_warning import log_exposure

CONFIG = FrontendConfig


def run(config: FrontendConfig) -> int:
    """Serves gRPC until a signal; returns the exit code."""
    process_log.setup(config.process_name or "frontend", config.log_level, config.log_format)
    require_doors(config)
    if os.environ.get("PAGEWIRE_API_KEY") and not process.is_child():
        raise UsageError(
            "PAGEWIRE_API_KEY protects pagewire serve alone",
            "a frontend would admit every caller",
            "give it --auth-file, with a token of pagewire token new, and unset the variable",
        )
    from frontend.main import run as run_frontend

    if not process.is_child():  # otherwise the supervisor logs it, once
        log_exposure(config)
    return run_frontend(config)
