"""Commands that run one process of a service: `frontend`, `engine`, `worker`; and `reader`, which a frontend
starts."""

import os
from dataclasses import replace

from pagewire import logs
from pagewire.cli.extras import require, require_doors, require_worker
from pagewire.config import EngineConfig, FrontendConfig, WorkerConfig
from pagewire.flags import KEYS, UsageError, parse
from pagewire.host import spawn as process


def run_frontend(config: FrontendConfig) -> int:
    """Serves gRPC until a signal; returns the exit code."""
    logs.setup(config.process_name or "frontend", config.log_level, config.log_format)
    require("frontend", "start a frontend")
    require_doors(config)
    keys = [name for name in KEYS if name in os.environ]
    if keys and not config.auth_file and not process.is_child():
        raise UsageError(
            f"{keys[0]} protects pagewire serve alone",
            "a frontend would admit every caller",
            "give it --auth-file, with a token of pagewire token new, and unset the variable",
        )
    from frontend.main import run
    from pagewire.supervisor.notices import log_exposure

    if not process.is_child():  # otherwise the supervisor logs it, once
        log_exposure(config)
    return run(config)


def run_engine(config: EngineConfig) -> int:
    """Runs an engine core until a signal; returns the exit code."""
    if config.external_workers:
        require("engine", "start an engine core")
    else:
        require_worker("start the engine's worker", config.device)
    logs.setup(config.process_name or "engine", config.log_level, config.log_format)
    from engine_core.main import run

    return run(config)


def run_worker(config: WorkerConfig) -> int:
    """Runs a worker until its engine core ends; returns the exit code."""
    # Whether it needs torch, the core's Initialize says.
    require("serve", "start a worker", at_least="engine")
    logs.setup(config.process_name or "worker", config.log_level, config.log_format)
    from worker.main import run, stand_by

    status = process.Status()
    if config.standby:
        arguments = stand_by(config.standby, status)
        config = replace(parse(WorkerConfig, arguments[1:], command="worker"), standby=config.standby)
    return run(config, status)


def run_reader(config: FrontendConfig) -> int:
    """Tokenizes prompts for the frontend that started it; returns the exit code."""
    logs.setup("reader", config.log_level, config.log_format)
    from frontend.prompts.process import run

    return run(config)


COMMANDS = {
    "frontend": (FrontendConfig, run_frontend),
    "engine": (EngineConfig, run_engine),
    "worker": (WorkerConfig, run_worker),
    "reader": (FrontendConfig, run_reader),
}
