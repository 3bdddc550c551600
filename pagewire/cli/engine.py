"""`pagewire engine`."""

from pagewire.cli.common.extras import require_worker
from pagewire.config import EngineConfig
from pagewire.logs import process_log

CONFIG = EngineConfig


def run(config: EngineConfig) -> int:
    """Runs an engine core until a signal; returns the exit code."""
    if not config.external_workers:
        require_worker("start the engine's worker", config.device)
    process_log.setup(config.process_name or "engine", config.log_level, config.log_format)
    from engine_core.main import run as run_engine

    return run_engine(config)
