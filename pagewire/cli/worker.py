"""`pagewire worker`."""

from pagewire.cli.common.extras import require
from pagewire.config import WorkerConfig
from pagewire.logs import process_log

CONFIG = WorkerConfig


def run(config: WorkerConfig) -> int:
    """Runs a worker until its engine core ends; returns the exit code."""
    require("worker", ("numpy",), "start a worker")  # whether it needs torch, the core's Initialize says
    process_log.setup(config.process_name or "worker", config.log_level, config.log_format)
    from worker.main import run as run_worker

    return run_worker(config)
