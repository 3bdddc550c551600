"""One engine core after another: a loaded worker that outlives its core is adopted by the next one.

    its core is gone    steps that were launched are finished, and all rows removed; blocks keep their content
    a new connection    with a new identity: nothing that the last core has sent is read any more
    WorkerHello         as soon as the next core listens at the address
    Initialize          is that of the load, or the worker fails: the core then takes another one
    Ready               as after the load, at once, with what the last core had cached

What ends a worker that no core adopts is its parent process.
"""

import logging
from dataclasses import dataclass

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.cache_contents import CacheContents
from worker.channel import Channel, EngineGone
from worker.cpu.rank_runner import RankRunner
from worker.fault_injection import FaultyRunner
from worker.loop import Commands, StepRunner, execute_steps

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedWorker:
    """A model that executes steps, what it was loaded by, and what the core was told of it."""

    runner: StepRunner
    initialize: worker_pb2.Initialize
    ready: worker_pb2.Ready


def serve_cores(
    channel: Channel, hello: worker_pb2.WorkerHello, loaded: LoadedWorker, *, outlives_core: bool
) -> None:
    """Executes steps until Shutdown. outlives_core: of one core after another; otherwise raises EngineGone
    with the first one's end. Raises StartupError when a core wants something else than what is loaded."""
    cached, is_adopted = CacheContents(loaded.initialize.cache_secret), True
    while is_adopted:
        try:
            execute_steps(_commands(channel, loaded.runner), loaded.runner, cached)
            return
        except EngineGone:
            if not outlives_core:
                raise
        loaded.runner.abandon()
        is_adopted = _await_core(channel, hello, loaded, cached)


def _commands(channel: Channel, runner: StepRunner) -> Commands:
    """Returns the commands of one core. Those of a rank are announced to the others."""
    return runner.announcing(channel) if isinstance(runner, RankRunner | FaultyRunner) else channel


def _await_core(
    channel: Channel, hello: worker_pb2.WorkerHello, loaded: LoadedWorker, cached: CacheContents
) -> bool:
    """Waits for the next core, and is adopted by it. Returns False after Shutdown."""
    logger.info("the engine core is gone; waiting for the next one")
    while True:
        channel.renew()
        channel.send(worker_pb2.WorkerMessage(hello=hello))
        try:
            command = channel.receive()
            while command.WhichOneof("command") not in ("initialize", "shutdown"):
                command = channel.receive()
        except EngineGone:
            continue  # it died, too, or was only looking whether the address is served
        if command.WhichOneof("command") == "shutdown":
            return False
        if _settings(command.initialize) != _settings(loaded.initialize):
            raise StartupError(
                "the worker cannot be adopted",
                "the engine core wants another model, or other settings, than the one before it",
            )
        loaded.ready.kept_cache.CopyFrom(cached.hand_over())
        del loaded.ready.adapters[:]
        loaded.ready.adapters.extend(loaded.runner.held_adapters)
        channel.send(worker_pb2.WorkerMessage(ready=loaded.ready))
        return True


def _settings(initialize: worker_pb2.Initialize) -> worker_pb2.Initialize:
    """Returns what must be equal for a worker to be adopted."""
    settings = worker_pb2.Initialize()
    settings.CopyFrom(initialize)
    for name in ("cache_secret", "group_name", "first_rank_pid"):
        settings.ClearField(name)
    return settings
