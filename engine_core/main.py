"""The engine core's process: bind, start the worker, announce, step until the end."""

import contextlib
import logging
import time
from pathlib import Path

import zmq

from engine_core.core import EngineCore
from engine_core.io.frontend_sockets import FrontendSockets
from engine_core.io.inbox import Asked, Inbox
from engine_core.io.stop_signal import Stopped, StopSignal
from engine_core.io.worker_link import WorkerLink
from engine_core.io.worker_process import WorkerDied
from engine_core.metrics import Parts
from engine_core.metrics import watch as watch_core
from engine_core.quarantine.crash_journal_file import journal_path, open_journal
from engine_core.recording.file import open_recording
from engine_core.startup import (
    check_config,
    initialize_message,
    make_identity,
    make_scheduler,
    queue_bounds,
    worker_arguments,
)
from pagewire.config import EngineConfig
from pagewire.errors import StartupError
from pagewire.host.gc_tuning import freeze_heap
from pagewire.host.spawn import Heartbeat, Status
from pagewire.ipc import transport
from pagewire.ipc.curve import CurveAuthenticator, read_engine_key
from pagewire.telemetry.watch import NO_PORT, Watch

log = logging.getLogger(__name__)


def run(config: EngineConfig) -> int:
    """The process, from start to exit code: 0 after a signal, 1 after a failure while serving.

    Raises StartupError when it cannot start. Call it in the main thread.
    """
    status = Status()
    try:
        check_config(config)
        with contextlib.ExitStack() as stack:
            return _serve(config, status, stack)
    except Stopped:
        return 0
    except StartupError as error:
        status.failed(error)
        raise


def _serve(config: EngineConfig, status: Status, stack: contextlib.ExitStack) -> int:
    """Everything that is opened here is closed by the stack, last first."""
    initialize, arguments = initialize_message(config), worker_arguments(config)
    recording = open_recording(Path(config.record)) if config.record else None
    if recording is not None:
        stack.callback(recording.close)
    stop = stack.enter_context(StopSignal())
    inbox = stack.enter_context(contextlib.closing(Inbox()))
    context = stack.enter_context(zmq.Context())
    key = read_engine_key(config.curve_key) if config.curve_key else None
    if key is not None:
        stack.callback(CurveAuthenticator(context, key).close)
    watch = stack.enter_context(contextlib.closing(Watch(config, "engine")))
    watch.open(NO_PORT)
    folder = transport.default_folder()
    listen = config.listen or transport.frontends_address(folder)
    frontends = FrontendSockets(context, listen, inbox, key)
    stack.callback(transport.remove_file, listen)
    stack.callback(frontends.close)
    listen_workers = config.listen_workers or transport.workers_address(folder)
    worker = WorkerLink(context, listen_workers, stop, hang_timeout=config.hang_timeout, key=key)
    stack.callback(transport.remove_file, listen_workers)
    stack.callback(worker.close)
    frontends.start()

    try:
        worker.meanwhile = pulse = Heartbeat(status.beat)
        worker.start(initialize, arguments, external=config.external_workers)
        ready = worker.wait_ready(status.loading)
    except WorkerDied as error:
        raise StartupError(error.what, error.why, error.todo, may_pass=error.may_pass) from error
    identity = make_identity(config, ready, time.time_ns())
    scheduler, notes = make_scheduler(config, ready, recording), journal_path(listen)
    scheduler.open(open_journal(notes, scheduler.num_rows))
    core = EngineCore(
        identity,
        scheduler,
        worker,
        inbox,
        frontends.send,
        ahead=config.scheduling == "ahead",
        pulse=pulse,
        bounds=queue_bounds(config),
    )
    watch_core(watch.board, Parts(core, frontends, worker, ready))
    watch.pages.begin(lambda answer: inbox.put(Asked(answer)))
    freeze_heap()
    facts = identity.welcome.model
    log.info("ready: %s, context %d, %d KV blocks", facts.architecture, facts.max_model_len, ready.num_blocks)
    status.ready(
        architecture=facts.architecture,
        dtype=facts.dtype,
        quantization=facts.quantization,
        device=identity.welcome.device,
        max_model_len=facts.max_model_len,
        num_blocks=ready.num_blocks,
        block_size=config.block_size,
        kv_cache_bytes=ready.kv_cache_bytes,
        weight_bytes=facts.weight_bytes,
        suspects=scheduler.probation.num_suspects,
        **watch.facts,
    )
    exit_code = _step_until_the_end(core, status)
    if not exit_code:
        notes.unlink(missing_ok=True)  # an end in peace: nobody is to blame
    return exit_code


def _step_until_the_end(core: EngineCore, status: Status) -> int:
    """Serves. Whatever ends that, everybody who waits for a request hears of it, and our parent why."""
    try:
        core.run()
    except Stopped:
        return 0
    except WorkerDied as error:
        if not status.attached:  # who started us says it
            log.error("%s", error)
        reason = StartupError(error.what, error.why, error.todo)
    except Exception as error:
        log.exception("the step loop has failed")
        reason = StartupError("the engine core failed", f"{type(error).__name__}: {error}", "this is a bug")
    core.fail_all("ENGINE_DEAD", "the engine has died")
    status.failed(reason)
    return 1
