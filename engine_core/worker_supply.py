"""Where an engine core has its worker from: started by this process or by its parent, or kept by the parent
when the core before this one was killed.

A kept worker has its model loaded and compiled, and answers within milliseconds: it is adopted, unless it has
ended meanwhile, does not answer, or was loaded with other settings. Then a new one takes its place.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import zmq

from engine_core.io.process_control import ParentOrders, StopSignal
from engine_core.io.worker_group import WorkerGroup
from engine_core.io.worker_process import ParentsWorker, WorkerDied, WorkerProcess
from engine_core.startup import remote_ranks, worker_arguments
from pagewire.config import EngineConfig
from pagewire.host.spawn import Activation, Heartbeat, KeptWorkers, Status, WorkerStarted
from pagewire.internal.v1.worker_pb2 import Initialize, Ready
from pagewire.ipc import transport
from pagewire.ipc.curve import EngineKey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """What an engine core's process has from its first moment on."""

    stop: StopSignal
    heartbeat: Heartbeat
    context: "zmq.Context[zmq.Socket[bytes]]"
    key: EngineKey | None  # for tcp


class WorkerSupply:
    """Starts or adopts the worker of one engine core."""

    def __init__(
        self, config: EngineConfig, process: Process, status: Status, stack: contextlib.ExitStack
    ) -> None:
        """stack: ends workers when it closes, or leaves them to the parent process that has started them."""
        self._config, self._process, self._status, self._stack = config, process, status, stack
        self._orders = ParentOrders(process.stop)
        self._started: WorkerGroup | None = None

    def begin(self) -> Activation:
        """Waits until this process is to serve, and starts the worker, if none is to be adopted. Raises
        StartupError, WorkerDied, Stopped, OSError."""
        activation = self._orders.next(Activation) if self._config.parent_starts_worker else Activation()
        if activation.kept is not None and self._config.nnodes > 1:
            for pid in activation.kept.pids:  # ranks on several hosts end with their core
                self._status.dismissed(pid)
            activation = replace(activation, kept=None)
        if activation.kept is None:
            self._started = self._start()
        return activation

    def load(self, initialize: Initialize, kept: KeptWorkers | None) -> tuple[WorkerGroup, Ready]:
        """Returns a worker that has loaded, the kept one if it can be adopted, and what it says of itself.
        Raises StartupError, WorkerDied, Stopped, OSError."""
        adopted = self._adopt(kept, initialize) if kept is not None else None
        if adopted is not None:
            return adopted
        workers = self._started or self._start(beside_another=True)
        workers.initialize(initialize)
        return workers, workers.wait_ready(self._status.loading)

    def _adopt(self, kept: KeptWorkers, initialize: Initialize) -> tuple[WorkerGroup, Ready] | None:
        """Returns None, and ends the worker, if it cannot be adopted. Raises StartupError, Stopped."""
        workers = self._bind(kept.address)
        try:
            workers.adopt([ParentsWorker(pid, self._status.dismissed) for pid in kept.pids])
            workers.initialize(initialize)
            ready = workers.wait_ready(self._status.loading)
        except (WorkerDied, ProcessLookupError) as error:
            log.warning("the worker of the last engine core is not adopted: %s", error)
            workers.dismiss()
            return None
        log.info("the worker of the last engine core is adopted")
        return workers, ready

    def _start(self, *, beside_another: bool = False) -> WorkerGroup:
        """Starts a worker. beside_another: at an address of its own."""
        config = self._config
        address = config.listen_workers or transport.workers_address(transport.default_folder())
        workers = self._bind(transport.own_address(address) if beside_another else address)
        workers.start(worker_arguments(config), external=config.external_workers, remote=remote_ranks(config))
        return workers

    def _bind(self, address: str) -> WorkerGroup:
        process = self._process
        workers = WorkerGroup(
            process.context,
            address,
            process.stop,
            hang_timeout=self._config.hang_timeout,
            key=process.key,
            heartbeat=process.heartbeat,
            start_worker=self._ask_for_worker if self._config.parent_starts_worker else None,
        )
        self._stack.callback(transport.remove_file, address)
        self._stack.callback(workers.release if self._config.parent_starts_worker else workers.close)
        return workers

    def _ask_for_worker(self, arguments: Sequence[str]) -> WorkerProcess:
        """Has the parent process start a worker. Raises OSError, Stopped."""
        self._status.request_worker(arguments)
        started = self._orders.next(WorkerStarted)
        if not started.pid:
            raise OSError(started.why)
        return ParentsWorker(started.pid, self._status.dismissed)
