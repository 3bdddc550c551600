"""The engine core's process: binds sockets, starts the worker, announces itself, and steps until the end."""

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from engine_core.context import Identity
from engine_core.core import EngineCore
from engine_core.intake.quota_exchange import QuotaFile, quota_path
from engine_core.io.frontend_sockets import FrontendSockets
from engine_core.io.inbox import DrainRequested, HealthProbe, Inbox
from engine_core.io.process_control import Stopped, StopSignal
from engine_core.io.worker_process import WorkerDied
from engine_core.kv_cache.hash_key import hash_secret
from engine_core.kv_transfer.peers import PeerSockets
from engine_core.metrics import Parts
from engine_core.metrics import watch as watch_core
from engine_core.quarantine.crash_journal import journal_path, open_journal
from engine_core.recording.file import open_recording
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from engine_core.startup import (
    adapter_options,
    check_config,
    initialize_message,
    make_identity,
    make_scheduler,
    pinned_adapters,
    queue_bounds,
    transfer_options,
)
from engine_core.worker_supply import Process, WorkerSupply
from pagewire.checkpoints.paths import default_served_name
from pagewire.config import NO_PORT, EngineConfig
from pagewire.errors import StartupError
from pagewire.host.gc_tuning import freeze_heap
from pagewire.host.spawn import Heartbeat, Status
from pagewire.host.standby import serve_forks
from pagewire.internal.v1.worker_pb2 import Ready
from pagewire.ipc import transport
from pagewire.ipc.curve import CurveAuthenticator, read_engine_key
from pagewire.logs import quoted
from pagewire.telemetry.watch import Watch

log = logging.getLogger(__name__)

_MOST_NAMES = 16
"""Requests that a line of the log names."""


def run(config: EngineConfig) -> int:
    """Runs the process. Returns its exit code: 0 after a signal, 1 after a failure while serving.

    Raises StartupError when it cannot start. To be called in the main thread.
    """
    status = Status()
    try:
        check_config(config)
        if config.standby:
            initialize_message(config)  # which imports what reads a checkpoint
            freeze_heap()
            serve_forks(status)
        with contextlib.ExitStack() as stack:
            return _serve(config, status, stack)
    except Stopped:
        return 0
    except StartupError as error:
        status.failed(error)
        raise


@dataclass(frozen=True, slots=True)
class _Endpoints:
    """What the process has opened to talk to frontends and operators."""

    inbox: Inbox
    listen: str  # address of the frontends' socket
    frontends: FrontendSockets
    watch: Watch


def _serve(config: EngineConfig, status: Status, stack: contextlib.ExitStack) -> int:
    """Everything that is opened here is closed by the stack, in reverse order."""
    initialize, process = initialize_message(config), _open_process(config, status, stack)
    supply = WorkerSupply(config, process, status, stack)
    with _worker_must_live():
        activation = supply.begin()
    recording = open_recording(Path(config.record)) if config.record else None
    if recording is not None:
        stack.callback(recording.close)
    endpoints = _open(config, process, stack)
    with _worker_must_live():
        workers, ready = supply.load(initialize, activation.kept)
    identity = make_identity(config, ready, time.time_ns())
    scheduler, journal = make_scheduler(config, ready, recording), journal_path(endpoints.listen)
    scheduler.prefix_cache.secret = hash_secret(initialize, ready)
    if config.parent_starts_worker:
        scheduler.track_cache(workers.track_cache(), ready.kept_cache)
    kept = open_journal(
        journal, scheduler.num_rows, killed=activation.after_kill, num_steps=1 + max(1, ready.stages)
    )
    scheduler.open(kept)
    peers = PeerSockets(process.context, process.key.as_client() if process.key is not None else None)
    stack.callback(peers.close_all)
    core = EngineCore(
        identity,
        scheduler,
        workers,
        endpoints.inbox,
        endpoints.frontends.send,
        ahead=config.scheduling == "ahead",
        heartbeat=process.heartbeat,
        bounds=queue_bounds(config),
        adapters=adapter_options(config, ready, journal.with_suffix(".adapters")),
        transfer=transfer_options(config, ready, peers),
        drain_timeout=config.drain_timeout,
        media_memory=config.media_memory * (1 << 30),
    )
    with _worker_must_live():
        core.load_adapters(pinned_adapters(config))
    core.intake.share_quotas(QuotaFile(quota_path(endpoints.listen)), identity.epoch)
    watch = endpoints.watch
    parts = Parts(core, endpoints.frontends, workers, ready)
    watch_core(watch.board, parts, for_vllm=config.metrics_names == "vllm")
    watch.pages.begin(lambda answer: endpoints.inbox.put(HealthProbe(answer)))
    freeze_heap()
    suspects = scheduler.quarantine.num_suspects
    _announce(status, identity, ready, block_size=config.block_size, suspects=suspects, **watch.facts)
    if config.drain_timeout:
        process.stop.on_first = lambda: endpoints.inbox.put(DrainRequested())
    exit_code = _step_until_the_end(core, status)
    if not exit_code:
        journal.unlink(missing_ok=True)  # after a clean end no request is suspected, nor an adapter
        journal.with_suffix(".adapters").unlink(missing_ok=True)
    return exit_code


def _open_process(config: EngineConfig, status: Status, stack: contextlib.ExitStack) -> Process:
    """Raises StartupError for a key that cannot be read."""
    stop, heartbeat = stack.enter_context(StopSignal()), Heartbeat(status.beat)
    context = stack.enter_context(zmq.Context())
    key = read_engine_key(config.curve_key) if config.curve_key else None
    if key is not None:
        stack.callback(CurveAuthenticator(context, key).close)
    return Process(stop, heartbeat, context, key)


def _open(config: EngineConfig, process: Process, stack: contextlib.ExitStack) -> _Endpoints:
    """Opens the HTTP port and the frontends' socket, and receives from frontends. Raises StartupError."""
    inbox = stack.enter_context(contextlib.closing(Inbox()))
    watch = stack.enter_context(contextlib.closing(Watch(config, "engine")))
    if config.metrics_names == "vllm":
        watch.board.add_vllm_names(model_name=config.metrics_model_name or default_served_name(config.model))
    watch.open(NO_PORT)
    listen = config.listen or transport.frontends_address(transport.default_folder())
    frontends = FrontendSockets(process.context, listen, inbox, process.key)
    stack.callback(transport.remove_file, listen)
    stack.callback(frontends.close)
    frontends.start()
    return _Endpoints(inbox, listen, frontends, watch)


@contextlib.contextmanager
def _worker_must_live() -> Iterator[None]:
    """Makes a worker's death before the first step a failure to start: raises StartupError."""
    try:
        yield
    except WorkerDied as error:
        raise StartupError(error.what, error.why, error.todo, may_pass=error.may_pass) from error


def _announce(status: Status, identity: Identity, ready: Ready, **facts: str | int | float) -> None:
    """Tells the log and the parent process that the engine core serves."""
    model = identity.welcome.model
    log.info("ready: %s, context %d, %d KV blocks", model.architecture, model.max_model_len, ready.num_blocks)
    status.ready(
        architecture=model.architecture,
        dtype=model.dtype,
        quantization=model.quantization,
        kv_cache_dtype=model.kv_cache_dtype,
        device=identity.welcome.device,
        max_model_len=model.max_model_len,
        num_blocks=ready.num_blocks,
        kv_cache_bytes=ready.kv_cache_bytes,
        weight_bytes=model.weight_bytes,
        **facts,
    )


def _step_until_the_end(core: EngineCore, status: Status) -> int:
    """Serves. When a failure ends that, all requests fail, and the parent process is told why."""
    try:
        core.run()
    except Stopped:
        return 0
    except WorkerDied as error:
        if not status.attached:  # otherwise the parent process logs it
            log.error("%s", error)
        if last := describe_last_steps(core.scheduler):
            log.warning("%s", last)
        reason = StartupError(error.what, error.why, error.todo, may_pass=error.may_pass)
    except Exception as error:
        log.exception("the step loop has failed")
        reason = StartupError("the engine core failed", f"{type(error).__name__}: {error}", "this is a bug")
    core.fail_all("ENGINE_DEAD", "the engine has died")
    status.failed(reason)
    return 1


def describe_last_steps(scheduler: Scheduler) -> str:
    """Returns a sentence with the ids of the requests that run, or that the steps in flight sample for, as a
    worker that died knows only rows; "" if there are none."""
    requests = {sequence.request: None for step in scheduler.in_flight for sequence in step.sampling}
    requests |= {sequence.request: None for sequence in scheduler.running}
    if not requests:
        return ""
    more = len(requests) - _MOST_NAMES
    names = " ".join(_names(list(requests)[:_MOST_NAMES]))
    return f"{len(requests)} requests were in the last steps: {names}" + (
        f" and {more} more" if more > 0 else ""
    )


def _names(requests: Iterable[Request]) -> Iterable[str]:
    for request in requests:
        tenant = f" tenant={quoted(request.tenant)}" if request.tenant else ""
        own = request.request_id.removeprefix(f"{request.tenant}/") if request.tenant else request.request_id
        yield f"[request_id={quoted(own)}{tenant}]"
