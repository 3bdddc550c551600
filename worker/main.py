"""The worker process: connects to its engine core, loads what it is told to, executes steps.

The modules that compute are imported after Initialize has named the device: a simulated one needs no torch,
and a wrong address is reported at once.
"""

import contextlib
import importlib
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable
from types import FrameType

import zmq

from pagewire import __version__
from pagewire.config import WorkerConfig
from pagewire.errors import StartupError, install_hint
from pagewire.host.gc_tuning import freeze_heap, freeze_imports, give_back_freed_memory
from pagewire.host.resources import GPU, parse_cores, pin
from pagewire.host.spawn import Status
from pagewire.host.standby import serve_forks
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.curve import read_client_key
from pagewire.plugins import find_plugin
from worker.channel import Channel, EngineGone, KeysRefused
from worker.core_succession import LoadedWorker, serve_cores
from worker.cpu.malloc_tuning import drop_library_pages, use_one_heap
from worker.cpu.precompile import needed_groups, precompile, select_instruction_set
from worker.cpu.rank_runner import of_rank
from worker.cpu.threads import prepare_threads
from worker.fault_injection import Faults, FaultyRunner
from worker.imports import import_metas, quick_imports
from worker.loop import RankGone, StepRunner
from worker.meeting import Meeting
from worker.weights.prefault import weights_memory

logger = logging.getLogger(__name__)

FAREWELL_MS = 1_000
"""Time that the last message has to be sent."""
REPORT_S = 5.0
"""Seconds between two lines of a worker that waits for a core on another host."""
RANK_GRACE_S = 5.0
"""Time that the core has to end a rank whose peer is gone."""
HOSTS_GRACE_S = 60.0
"""The same, where the core has to miss the heartbeats of another host."""
BUILT_IN = "auto", "cpu", "cuda"
"""Values of --device that need no plug-in."""


class Stop(BaseException):
    """Raised by a signal that ends the process."""


def stand_by(cpu_kernels: str, status: Status) -> list[str]:
    """Imports what computes, with kernels of this instruction set, and forks workers. Returns in each of them
    with its arguments. Raises StartupError after reporting it to the parent."""
    use_one_heap()
    prepare_threads()
    try:
        _import_ahead(cpu_kernels)
        return serve_forks(status)
    except StartupError as error:
        status.failed(error)
        raise


def run(config: WorkerConfig, status: Status | None = None) -> int:
    """Runs until the core sends Shutdown or disconnects, or a signal arrives. Returns the exit code.

    Raises StartupError when there is no address to connect to, or the keys are wrong; later failures are
    sent to the core, which reports them to the user.
    """
    status = status or Status()
    use_one_heap()
    _handle_signals(status.attached)
    _keep_to_cores(config)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        key = read_client_key(config.curve_key) if config.curve_key else None
        channel = Channel(context, config.engine, key)
        group_address = config.master_addr
        meeting = Meeting(config.rank, group_address, channel.is_lost) if group_address else None
    except StartupError as error:
        status.failed(error)
        raise
    try:
        code = _serve(channel, config, meeting)
        channel.close(FAREWELL_MS)
    except KeysRefused as error:  # so that nothing can be sent to the core
        channel.close(0)
        status.failed(error)
        raise
    except Stop:
        channel.close(0)
        code = 0
    context.term()
    if meeting is not None and meeting.abandoned is not None:
        os._exit(code)
    return code


def _keep_to_cores(config: WorkerConfig) -> None:
    """Pins the process to its cores, before threads inherit the mask. Logs where that is not permitted."""
    if config.cores:
        failure = pin(parse_cores(config.cores))
        if failure is not None:
            logger.warning("cannot keep to cores %s: %s", config.cores, failure)


def _serve(channel: Channel, config: WorkerConfig, meeting: Meeting | None = None) -> int:
    """Says hello, loads, and executes steps. meeting: of a group over several hosts. Returns the exit
    code."""
    hello = worker_pb2.WorkerHello(rank=config.rank, pid=os.getpid(), version=__version__)
    if meeting is not None:
        hello.host, hello.group_size, hello.store_port = meeting.host, config.group_size, meeting.port
    channel.send(worker_pb2.WorkerMessage(hello=hello))
    prepare_threads()
    try:
        loaded = _load(channel, config, meeting)
        if loaded is not None:
            serve_cores(channel, hello, loaded, outlives_core=config.outlives_core)
        return 0
    except KeysRefused:
        raise
    except EngineGone:
        logger.info("the engine core is gone")
        return 1
    except RankGone as error:
        logger.error("%s", error)
        await_end(channel, RANK_GRACE_S if meeting is None else HOSTS_GRACE_S)
        return 1
    except Exception as error:
        failed = _failure(error)
        logger.debug("failed\n%s", failed.traceback)
        channel.send(worker_pb2.WorkerMessage(failed=failed))
        return 1


def await_end(channel: Channel, seconds: float = RANK_GRACE_S) -> None:
    """Waits for so long for the core to end this process: it names the rank that has ended first."""
    until = time.monotonic() + seconds
    with contextlib.suppress(EngineGone):
        while (left := until - time.monotonic()) > 0:
            if channel.receive(left).WhichOneof("command") == "shutdown":
                return


def _import_ahead(cpu_kernels: str) -> None:
    """Imports what a model on a CPU needs, with its compiled kernels: most of the time of a start. Missing
    packages are reported when a model loads. Raises StartupError."""
    select_instruction_set(cpu_kernels)
    with contextlib.suppress(ModuleNotFoundError), quick_imports():
        importlib.import_module("worker.platforms.cpu")
        compiled = precompile(wanted=None)
        compiled.begin()
        compiled.wait(lambda what, fraction: None)
    freeze_imports()
    give_back_freed_memory()
    drop_library_pages()  # a third of what a standby has; what is used again comes from the page cache


def _load(channel: Channel, config: WorkerConfig, meeting: Meeting | None) -> LoadedWorker | None:
    """Waits for Initialize and loads. None: the core sent Shutdown instead."""
    kind = None
    while kind != "initialize":
        command = channel.receive(REPORT_S if config.engine.startswith("tcp:") else None)
        kind = command.WhichOneof("command")
        if kind is None:
            logger.info("waiting for the engine core at %s", config.engine)
        if kind == "shutdown":
            return None
    report = _ProgressReport(channel)
    if command.initialize.device in BUILT_IN:
        runner, ready = _load_model(command.initialize, config, report, meeting)
    else:
        runner, ready = _load_plugin(command.initialize, config, report)
    freeze_heap()
    channel.send(worker_pb2.WorkerMessage(ready=ready))
    return LoadedWorker(runner, command.initialize, ready)


def _load_model(
    initialize: worker_pb2.Initialize,
    config: WorkerConfig,
    report: Callable[[str, float], None],
    meeting: Meeting | None,
) -> tuple[StepRunner, worker_pb2.Ready]:
    """Raises StartupError."""
    on_cpu = initialize.device == "cpu" or (initialize.device == "auto" and not GPU.exists())
    if on_cpu and initialize.cpu_kernels:
        select_instruction_set(initialize.cpu_kernels)
    memory = weights_memory(initialize) if on_cpu else None
    with contextlib.ExitStack() as stack:
        precompiled = None
        if on_cpu:
            precompiled = stack.enter_context(contextlib.closing(precompile(needed_groups(initialize))))
        try:
            with quick_imports():
                from worker.load import load
                from worker.platforms.cpu import CpuPlatform
                from worker.startup.model import choose_device
            freeze_imports()

            if choose_device(initialize.device).type == "cuda":
                _refuse_faults(config, "a GPU")
                import_metas()
                from worker.platforms.cuda import CudaPlatform

                on_cuda = CudaPlatform(config)
                launching, ready = load(initialize, on_cuda, report)
                return of_rank(launching, on_cuda.ranks), ready
        except ModuleNotFoundError as error:
            raise StartupError(
                "cannot load a model", f"{error.name} is not installed", install_hint("serve")
            ) from error
        platform = CpuPlatform(config, precompiled, memory, meeting)
        executor, ready = load(initialize, platform, report)
        runner = of_rank(executor, platform.ranks)
        return (FaultyRunner(runner, Faults(config)) if config.fails_on_purpose else runner), ready


def _refuse_faults(config: WorkerConfig, device: str) -> None:
    if config.fails_on_purpose:
        raise StartupError(
            "cannot start a worker", f"{device} does not fail on purpose", "leave --fault-... out"
        )


def _load_plugin(
    initialize: worker_pb2.Initialize, config: WorkerConfig, report: Callable[[str, float], None]
) -> tuple[StepRunner, worker_pb2.Ready]:
    """Loads on a device that a plug-in brings, such as the simulated one. Raises StartupError."""
    platform = find_plugin("pagewire.platforms", initialize.device).load()(config)
    from worker.load import load

    executor, ready = load(initialize, platform, report)
    return of_rank(executor, platform.ranks), ready


class _ProgressReport:
    """Sends loading progress to the core, in steps of one percent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sent: tuple[str, int] = ("", 0)

    def __call__(self, what: str, fraction: float) -> None:
        now = (what, int(fraction * 100))
        if now != self._sent:
            self._sent = now
            progress = worker_pb2.LoadProgress(what=what, fraction=fraction)
            self._channel.send(worker_pb2.WorkerMessage(load_progress=progress))


def _failure(error: Exception) -> worker_pb2.Failed:
    """Returns the message that reports an exception to the core."""
    failed = worker_pb2.Failed(
        type=type(error).__name__, traceback="".join(traceback.format_exception(error))
    )
    if isinstance(error, StartupError):
        failed.what, failed.why, failed.todo = error.what, error.why, error.todo
        failed.may_pass = error.may_pass
    else:
        failed.what, failed.why = "the worker failed", f"{type(error).__name__}: {error}"
        failed.todo = "this is a bug; the traceback is in the log at level debug"
    return failed


def _handle_signals(has_parent: bool) -> None:
    """Makes SIGTERM end the process quietly, at any point. So does SIGINT, unless there is a parent process:
    Ctrl-C reaches both, and the parent may let running requests finish."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stop

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN if has_parent else stop)
