"""One simulation: all processes, their clients, and what goes wrong, from a seed."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from unittest import mock

from engine_core.scheduler.scheduler import Scheduler
from frontend.auth.caller import ANONYMOUS
from frontend.errors import AdaptersDiffer, EngineNotReady, ModelNotFound, ServiceError
from pagewire.config import EngineConfig
from tests.simulation.adapters import FIXED, AdapterChange, Adapters
from tests.simulation.client import Client
from tests.simulation.clock import virtual_time
from tests.simulation.disasters import KINDS
from tests.simulation.embedding_client import EmbeddingClient
from tests.simulation.engine import Engine
from tests.simulation.frontends import FrontendProcess
from tests.simulation.host import simulated_processes
from tests.simulation.machine import Machine
from tests.simulation.moves import Moves
from tests.simulation.network import Network
from tests.simulation.trace import Trace
from tests.simulation.workload import EmbedJob, Fault, Job, Workload

SETTLE_S = 3.0
"""After the last client has its end, until everything must be at rest: longer than a heartbeat."""


MOST_DEATHS = 8
"""Of one core by one request, until it is found out; also where it kills now and then, as others do."""


@dataclass(frozen=True)
class Report:
    """What a simulation was."""

    seed: int
    digest: str
    num_events: int
    num_steps: int
    num_preemptions: int
    most_preemptions: int  # of one request
    num_deaths: int  # of cores
    num_adoptions: int  # of workers, by a core
    num_adopted_blocks: int
    num_adopted_states: int  # checkpoints of them
    outcomes: Counter[str]
    seconds: float  # virtual
    cpu_seconds: float
    trace: Trace
    poison_deaths: tuple[int, ...]  # for each request that the engine has died of: how often
    pulls: Counter[str]  # by outcome


ADAPTER_TURN = 6
"""Steps: outputs are short here."""


class Failed(Exception):
    """A simulation has found something. Its cause says what."""

    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(f"seed {seed}")
        self.seed, self.trace = seed, trace


class World:
    """Everything of one seed."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._folder = TemporaryDirectory(prefix="pagewire-adapters-") if workload.adapters else None
        if workload.adapters is not None and self._folder is not None:
            workload.config = self._put_adapters(workload.adapters, Path(self._folder.name))
        self.clients: list[Client | EmbeddingClient] = []
        self._is_at_rest = False
        self.machine = Machine(lambda: self._is_at_rest)
        self._random = Random(f"world {workload.seed}")
        settings = workload.settings
        times = settings.latency, settings.restart / 20
        names: dict[bytes, str] = {}
        self.networks = [
            Network(self.machine.loop, self.machine.trace, self._fork(f"network {place}"), names, *times)
            for place in range(settings.num_engines)
        ]
        self._moves: Moves | None = None
        if workload.moving is not None:
            parts = self.machine.loop, self.machine.trace, self._fork("moves"), workload.moving
            self._moves = Moves(*parts, self.networks, self._strike_pull)
        self.engines = [
            Engine(self.machine, network, workload, self._fork(f"engine {place}"), place, self._moves)
            for place, network in enumerate(self.networks)
        ]
        self.frontends: list[FrontendProcess | None] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_running = len(workload.jobs) + len(workload.embeds)

    def run(self) -> None:
        """From the start of the processes until they have nothing left to do. Raises what is wrong."""
        loop = self.machine.loop
        turns = mock.patch.dict(Scheduler.__init__.__kwdefaults__ or {}, adapter_turn=ADAPTER_TURN)
        with virtual_time(loop), _quiet(), simulated_processes(), turns, contextlib.ExitStack() as stack:
            for engine in self.engines:
                stack.callback(engine.close)
            stack.callback(self.machine.abandon)
            if self._folder is not None:
                stack.enter_context(self._folder)
            loop.call_soon(self._begin)
            self.machine.run()
            self._check_at_rest()
            for engine in self.engines:
                engine.check_recordings()
                most = max(engine.poison_deaths.values(), default=0)
                assert most <= MOST_DEATHS, f"one request has killed a core {most} times"
            loop.call_soon(self._end)
            loop.run(loop.time() + 1.0, lambda: False)
        assert not loop.errors, loop.errors

    def _fork(self, name: str) -> Random:
        return Random(f"{name} {self.workload.seed}")

    def _begin(self) -> None:
        for place in range(self.workload.settings.num_frontends):
            self.frontends.append(None)
            self._start_frontend(place)
        for job in self.workload.jobs:
            self.machine.loop.call_at(job.at, self._start_client, job)
        for embed in self.workload.embeds:
            self.machine.loop.call_at(embed.at, self._start_embedding, embed)
        for fault in self.workload.faults:
            self.machine.loop.call_at(fault.at, self._strike, fault)
        for change in self.workload.adapters.changes if self.workload.adapters is not None else ():
            self.machine.loop.call_at(change.at, self._change, change)

    def _start_frontend(self, place: int) -> None:
        random = self._fork(f"frontend {place} at {self.machine.loop.time()}")
        settings = self.workload.settings
        moving, times = self.workload.moving, (settings.latency, settings.disconnect_grace)
        shares = moving is not None and moving.share_prefixes
        self.frontends[place] = FrontendProcess(
            self.machine, self.networks, random, *times, shares, self.workload.images
        )

    # Clients.

    def _start_client(self, job: Job) -> None:
        client = Client(self.machine, job, lambda: self.frontends)
        self.clients.append(client)
        task = self._spawn(client.run())
        task.add_done_callback(lambda _: self._client_ended())
        loop = self.machine.loop
        for after in (job.timeout, job.cancel_after):
            if after is not None:
                loop.call_later(after, task.cancel)
        if job.aborted_after is not None:
            loop.call_later(job.aborted_after, lambda: self._spawn(self._abort(client, job)))

    def _start_embedding(self, job: EmbedJob) -> None:
        client = EmbeddingClient(self.machine, job, lambda: self.frontends)
        self.clients.append(client)
        task = self._spawn(client.run())
        task.add_done_callback(lambda _: self._client_ended())
        if job.cancel_after is not None:
            self.machine.loop.call_later(job.cancel_after, task.cancel)

    def _client_ended(self) -> None:
        self._num_running -= 1
        if not self._num_running:
            self.machine.loop.call_later(SETTLE_S, self._rest)

    def _rest(self) -> None:
        loop = self.machine.loop
        # An operator may still wait for an answer; a core that was killed has to start, and to hear of names.
        lives = all(
            each.core is not None and loop.time() >= each.ready_at + SETTLE_S for each in self.engines
        )
        self._is_at_rest = not self._tasks and lives
        if not self._is_at_rest:
            loop.call_later(SETTLE_S, self._rest)

    async def _abort(self, client: Client, job: Job) -> None:
        """An operator ends a request by its id, on any frontend, as GenerationServicer.Abort does."""
        server = self._random.choice(self.frontends)
        if server is None:
            return
        client.is_aborted = True
        self.machine.trace("operator", "aborts", job.number, "on", server.name)
        if not server.generator.registry.abort_unsent([job.request.request_id]):
            with contextlib.suppress(ServiceError):
                await server.client.questions.abort_by_ids([job.request.request_id])

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: "asyncio.Task[None]") -> None:
        """What a task raises ends the simulation."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    # Adapters.

    def _put_adapters(self, adapters: Adapters, folder: Path) -> EngineConfig:
        """Writes the adapters of the start; returns a configuration with them."""
        parent, fixed = folder / "adapters", folder / FIXED
        for name, files in adapters.folders.items():
            files.write(fixed if name == FIXED else parent / name)
        memory, lora = adapters.memory / (1 << 30), (f"{FIXED}={fixed}",)
        return replace(self.workload.config, lora_folder=str(parent), lora=lora, lora_memory=memory)

    def _change(self, change: AdapterChange) -> None:
        self.machine.trace("operator", "changes", change.name, change.folder, "files" if change.files else "")
        if change.files is not None:
            change.files.write(Path(self.workload.config.lora_folder) / change.folder)
        elif (frontend := self.frontends[change.place]) is not None:
            frontend.handle(self._tell(frontend, change)).add_done_callback(self._finish)

    async def _tell(self, frontend: FrontendProcess, change: AdapterChange) -> None:
        """Loads or unloads an adapter. An engine may die meanwhile, and files change."""
        adapters = frontend.client.adapters
        try:
            if change.folder:
                await adapters.load(change.name, change.folder, pinned=False, tenants=())
            else:
                await adapters.unload(change.name)
        except (EngineNotReady, AdaptersDiffer, ModelNotFound):
            pass
        self.machine.trace("operator", "has changed", change.name)

    def _check_names(self) -> None:
        """Checks that frontends and cores agree on the names of adapters."""
        cores = [engine.core.adapter_names.table().adapters for engine in self.engines if engine.core]
        named = [{each.name: each.digest for each in adapters} for adapters in cores]
        for frontend in self.frontends:
            if frontend is None:
                continue
            known = {each.name: each.digest for each in frontend.client.adapters.visible(ANONYMOUS)}
            for name, digest in known.items():
                found = [names.get(name) for names in named]
                assert digest in found, f"{frontend.name}: {name} is no adapter, or another"
            for name in set.intersection(*map(set, named)):
                assert name in known, f"{frontend.name} does not know {name}"

    # Faults.

    def _strike(self, fault: Fault) -> None:
        self.machine.trace("fault", fault.kind, fault.place)
        if fault.kind in ("core", "worker", "cores"):
            self._strike_engines(fault)
            return
        if fault.kind == "drain":
            self.engines[fault.place].drain()
            return
        frontend = self.frontends[fault.place]
        if fault.kind == "frontend" and frontend is not None:
            self.frontends[fault.place] = None
            frontend.die()
            self.machine.loop.call_later(self._random.uniform(0.1, 2.0), self._start_frontend, fault.place)
        elif fault.kind == "link" and frontend is not None:
            place = self._random.randrange(len(self.networks))
            self.networks[place].cut(frontend.sockets[place])
        elif fault.kind == "backlog" and frontend is not None:
            network = self._random.choice(self.networks)
            network.lose_frontend(frontend.client.identity)  # the core takes one that reads slowly for gone
        elif fault.kind == "reset" and frontend is not None:
            self._spawn(self._reset(frontend))

    def _strike_engines(self, fault: Fault) -> None:
        for engine in self.engines if fault.kind == "cores" else [self.engines[fault.place]]:
            if fault.kind != "worker":
                engine.kill()
            else:
                engine.kill_worker()

    def _strike_pull(self, victims: str, reader: int, holder: int) -> None:
        """In a moment of a pull."""
        self.machine.trace("fault", victims, "of core", reader, "from core", holder)
        assert self._moves is not None
        if victims == "link":
            self._moves.silence(reader, holder)
        if victims == "reset" and self.frontends[0] is not None:
            self._spawn(self._reset(self.frontends[0]))
        if victims in ("reader", "both"):
            self.engines[reader].kill_now()
        if victims in ("holder", "both"):
            self.engines[holder].kill_now()
        if victims in ("reader's worker", "workers"):
            self.engines[reader].kill_worker_now()
        if victims in ("holder's worker", "workers"):
            self.engines[holder].kill_worker_now()
        if victims in ("drain", "reader drains"):
            self.engines[holder if victims == "drain" else reader].drain()

    async def _reset(self, frontend: FrontendProcess) -> None:
        with contextlib.suppress(ServiceError):
            await frontend.client.questions.reset_cache()

    # The end.

    def _check_at_rest(self) -> None:
        """Checks that nothing is held anywhere once all requests have ended. Raises AssertionError."""
        for engine in self.engines:
            assert engine.core is not None
            scheduler = engine.core.scheduler
            scheduler.check_invariants()
            assert not scheduler.requests and not scheduler.waiting, "a request is in flight"
            assert not len(engine.core._frontends.detached), "a detached request is kept"
            assert not len(engine.core.transfer.pulls), "blocks are still read"
            assert not len(engine.core.transfer.leases), "a lease has no end"
            assert scheduler.pool.num_free == scheduler.pool.num_blocks, "a block is held"
            assert len(scheduler.rows.free) == scheduler.num_rows, "a row is held"
        self._check_names()
        for frontend in self.frontends:
            if frontend is not None:
                frontend.check_at_rest()
        assert not self._num_running and all(client.outcome for client in self.clients)

    def _end(self) -> None:
        for frontend in self.frontends:
            if frontend is not None:
                frontend.die()


def simulate(seed: int, kind: str = "plain") -> Report:
    """Runs one seed. kind: see disasters.py. Raises Failed."""
    began = process_time()
    world = World(KINDS[kind](seed))
    try:
        world.run()
    except Exception as error:
        with _quiet():
            world.machine.loop.abandon()
        raise Failed(seed, world.machine.trace) from error
    engines, poison_deaths = world.engines, Counter[int]()
    for engine in engines:
        poison_deaths += engine.poison_deaths
    num_steps = sum(engine.num_steps for engine in engines)
    return Report(
        seed=seed,
        digest=world.machine.trace.digest(),
        num_events=world.machine.loop.num_events + num_steps,
        num_steps=num_steps,
        num_preemptions=sum(engine.num_preemptions for engine in engines),
        most_preemptions=max(engine.most_preemptions for engine in engines),
        num_deaths=sum(engine.num_lives - 1 for engine in engines),
        num_adoptions=sum(engine.num_adoptions for engine in engines),
        num_adopted_blocks=sum(engine.num_adopted_blocks for engine in engines),
        num_adopted_states=sum(engine.num_adopted_states for engine in engines),
        outcomes=Counter(client.outcome for client in world.clients),
        seconds=world.machine.loop.time(),
        cpu_seconds=process_time() - began,
        trace=world.machine.trace,
        poison_deaths=tuple(poison_deaths.values()),
        pulls=sum((engine.pulls for engine in engines), Counter()),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of deaths are no news."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
