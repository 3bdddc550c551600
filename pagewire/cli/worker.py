"""`pagewire worker`."""

from pagewire import logs
from pagewire.cli.extras import require_worker
from pagewire.config import WorkerConfig

CONFIG = WorkerConfig


def run(config: WorkerConfig) -> int:
    """Computes until its engine core ends; returns the exit code."""
    require_worker("start a worker")
    logs.setup("worker", config.log_level)
    from worker.main import run as run_worker

    return run_worker(config)
