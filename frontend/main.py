"""The frontend process: starts, serves until a signal, stops."""

import asyncio
import logging
import signal
from functools import partial

from uvloop import new_event_loop

from frontend.model.info import ModelInfo, load_model
from frontend.prompts import process as reader
from frontend.server import Frontend
from frontend.text.tokenizer_preflight import try_first
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.host.gc_tuning import freeze_heap, give_back_freed_memory
from pagewire.host.spawn import Heartbeat, Status, is_child
from pagewire.host.standby import Fork, forks_of_this, serve_forks
from pagewire.logs import log_loop_error

log = logging.getLogger(__name__)

ENGINE_PATIENCE_S = 2.0
"""Seconds to wait for a running engine, which answers within milliseconds. After that clients are told that
there is none."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: FrontendConfig) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises StartupError after reporting it to
    the parent."""
    status = Status()
    try:
        status.loading("tokenizer", 0.0)
        try_first(partial(load_model, config), config.model, partial(status.loading, "tokenizer"))
        model = load_model(config)
        freeze_heap()
        give_back_freed_memory()
        if config.standby:
            serve_forks(status)
        # Before there are threads. Tokens and TLS keys are read later: prompt processes have none of them.
        fork_reader = forks_of_this(partial(reader.serve, config, model), reader.NAME, status)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(config, model, status, fork_reader))
    except StartupError as error:
        status.failed(error)
        raise
    except KeyboardInterrupt:  # sent before the handler was installed
        pass
    return 0


async def _serve(
    config: FrontendConfig, model: ModelInfo, status: Status, fork_reader: Fork | None = None
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_error)
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    frontend = Frontend(config, model, fork_reader)
    heartbeats = asyncio.create_task(_send_heartbeats(status), name="heartbeats")
    port = frontend.open()
    status.loading("waiting for the engine", 0.5)
    ready = asyncio.create_task(_announce(frontend, config, status, port))
    ready.add_done_callback(lambda _: stop.set() if _has_failed(ready) else None)
    await stop.wait()
    if _has_failed(ready):  # another process may serve instead
        ready.result()
    ready.cancel()
    log.info("stopping")
    for number in SIGNALS:
        loop.add_signal_handler(number, frontend.hurry)
    await frontend.stop(config.shutdown_grace, config.drain_delay)
    heartbeats.cancel()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


async def _send_heartbeats(status: Status) -> None:
    """Proves to the parent process that this event loop runs."""
    while True:
        status.beat()
        await asyncio.sleep(Heartbeat.INTERVAL_S)


async def _announce(frontend: Frontend, config: FrontendConfig, status: Status, port: int) -> None:
    await frontend.start(ENGINE_PATIENCE_S)
    if not frontend.state.serves and not is_child():
        addresses = ", ".join(core.address for core in frontend.engine.cores)
        log.info("calls are UNAVAILABLE until an engine core serves; --engine is %s", addresses)
    await frontend.wait_until_serving()
    host = f"[{config.host}]" if ":" in config.host else config.host
    status.ready(port=port, address=f"{host}:{port}", **frontend.facts)
    log.info("ready")
    await frontend.wait_broken()
