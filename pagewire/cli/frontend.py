"""`pagewire frontend`."""

from pagewire.cli.common.extras import require_doors
from pagewire.config import FrontendConfig
from pagewire.host import spawn as process
from pagewire.logs import process_log
from pagewire.supervisor.exposure_warning import log_exposure

CONFIG = FrontendConfig


def run(config: FrontendConfig) -> int:
    """Serves gRPC until a signal; returns the exit code."""
    process_log.setup(config.process_name or "frontend", config.log_level, config.log_format)
    require_doors(config)
    from frontend.main import run as run_frontend

    if not process.is_child():  # otherwise the supervisor logs it, once
        log_exposure(config)
    return run_frontend(config)
