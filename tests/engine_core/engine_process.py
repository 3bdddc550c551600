"""An engine core process: engine_core.main.run() with the fake worker."""

import functools
import json
import sys
from pathlib import Path

from engine_core import main, worker_supply
from engine_core.io import worker_group as workers
from pagewire import logs
from pagewire.config import EngineConfig
from pagewire.errors import StartupError
from pagewire.ipc import transport
from tests.engine_core.processes import spawn_fake_worker

if __name__ == "__main__":
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    logs.setup("engine", "info")
    worker_supply.WorkerGroup = functools.partial(  # type: ignore[misc, assignment]
        workers.WorkerGroup, spawn=spawn_fake_worker
    )
    config = EngineConfig(
        model=str(folder / "model"),
        listen=transport.frontends_address(folder),
        listen_workers=transport.workers_address(folder),
        **options,
    )
    try:
        sys.exit(main.run(config))
    except StartupError as error:
        sys.exit(f"error: {error}")
