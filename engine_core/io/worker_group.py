"""The worker: a group of ranks, each a process, that execute every plan together."""

import contextlib
import logging
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from engine_core.io.inbox import Inbox
from engine_core.io.process_control import StopSignal
from engine_core.io.rank import Rank
from engine_core.io.rank_adapters import held_by_all
from engine_core.io.rank_socket import LOOK_S, RankSocket
from engine_core.io.remote_ranks import MissingRanks, RemoteRanks
from engine_core.io.worker_process import SEE_ABOVE, SHUTDOWN_GRACE_S, WorkerChild, WorkerDied, WorkerProcess
from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.host import spawn as process
from pagewire.internal.v1.engine_pb2 import ModelFacts
from pagewire.internal.v1.worker_pb2 import (
    AdapterLoaded,
    BlocksRead,
    CompileGrammar,
    DropAdapter,
    EndBurst,
    Initialize,
    KeptCache,
    LoadAdapter,
    ReadBlocks,
    Ready,
    Shutdown,
    StepResult,
    StopReading,
    WorkerCommand,
    WorkerHello,
)
from pagewire.ipc.curve import EngineKey
from pagewire.ipc.transport import pack

log = logging.getLogger(__name__)

_IDLE_LOOK_S = 0.5
"""Like LOOK_S, while there is nothing to compute."""

Spawn = Callable[[Sequence[str]], tuple["subprocess.Popen[bytes]", int]]
StartWorker = Callable[[Sequence[str]], WorkerProcess]
"""Starts `pagewire ARGUMENTS`, a worker. Raises OSError."""


class WorkerGroup:
    """The ranks of one model. Implements engine_core.core.Worker."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        stop: StopSignal,
        spawn: Spawn = process.spawn,
        *,
        hang_timeout: float = 0.0,
        key: EngineKey | None = None,
        heartbeat: Callable[[], None] = lambda: None,
        start_worker: StartWorker | None = None,
    ) -> None:
        """Binds. Raises StartupError.

        hang_timeout: see HangDetector. key: for tcp. heartbeat: called a few times a second while the ranks
        load; the engine core then sets `on_wait` to its own. start_worker: None: ranks are children of this
        process.
        """
        self._start_worker = start_worker or (lambda arguments: WorkerChild(*spawn(arguments)))
        self._hang_timeout = hang_timeout
        self._socket = RankSocket(context, address, stop, key, heartbeat)
        self._ranks = self._socket.ranks
        self._submitted: deque[Plan] = deque()
        self._kept_changes: KeptChanges | None = None
        self._missing: MissingRanks | None = None

    @property
    def on_wait(self) -> Callable[[], None]:
        return self._socket.on_wait

    @on_wait.setter
    def on_wait(self, callback: Callable[[], None]) -> None:
        self._socket.on_wait = callback

    @property
    def num_bad_frames(self) -> int:
        """Messages that were not of a rank, since the start."""
        return self._socket.num_bad_frames

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty if the engine core has not started the ranks."""
        return [rank.child.pid for rank in self._ranks if rank.child is not None]

    def start(
        self, arguments: Sequence[Sequence[str]], *, external: bool, remote: RemoteRanks | None = None
    ) -> None:
        """Starts the ranks. Raises OSError, StartupError.

        arguments: of each rank, beyond those that every worker gets. external: ranks are started by others,
        and awaited. remote: more ranks, of other hosts, which are awaited.
        """
        size = len(arguments) + (remote.count if remote is not None else 0)
        if external:
            name = "a worker" if size == 1 else f"{size} ranks"
            log.info("waiting for %s at %s", name, self._socket.address)
            self._socket.watch_connections()
        for number, own in enumerate(arguments):
            child = None if external else self._start_child(number, own)
            self._ranks.append(Rank(number, size, child, self._hang_timeout))
        if remote is not None:
            self._ranks += [
                Rank(number, size, None, self._hang_timeout) for number in range(len(arguments), size)
            ]
            self._missing = MissingRanks(self._ranks, remote)
            self._socket.listen_to_hosts(remote.address, self._hang_timeout)

    def adopt(self, processes: Sequence[WorkerProcess]) -> None:
        """Takes over ranks that have loaded for an earlier core at this address, and look for the next one.
        initialize() must tell them what they have loaded."""
        for number, child in enumerate(processes):
            rank = Rank(number, len(processes), child, self._hang_timeout)
            rank.hang_detector.kept()
            self._socket.watch(child.pidfd)
            self._ranks.append(rank)

    def initialize(self, initialize: Initialize) -> None:
        """Tells the ranks what to load, once they have connected. Raises WorkerDied, Stopped."""
        own = Initialize()
        own.CopyFrom(initialize)
        for rank in self._ranks:
            hello = self._await_hello(rank)
            if rank.number == 0 and len(self._ranks) > 1:
                own.first_rank_pid, own.store_port = hello.pid, hello.store_port
        frame = pack(WorkerCommand(initialize=own))
        for rank in self._ranks:
            self._socket.send(rank, frame)

    def _await_hello(self, rank: Rank) -> WorkerHello:
        message = self._socket.wait(rank, self._await_hosts)
        if message.WhichOneof("message") != "hello":
            raise WorkerDied(f"cannot talk to {rank.name}", "its first message is not a WorkerHello")
        hello = message.hello
        log.info("worker %d connected (pid %d%s)", rank.number, hello.pid, hello.host and f" on {hello.host}")
        return hello

    def _await_hosts(self) -> None:
        """Lets ranks of this host wait for those of others, and says which these are."""
        if self._missing is None:
            return
        self._missing.report()
        for rank in self._ranks:
            if rank.peer is not None:
                rank.hang_detector.heard()

    def wait_ready(self, on_progress: Callable[[str, float], None]) -> Ready:
        """Waits until all ranks have loaded. on_progress: takes what rank 0 is doing, and 0 to 1."""
        ranks = [self._wait_ready(rank, on_progress) for rank in self._ranks]
        combined = combine_ready(ranks)
        held, others = held_by_all([ready.adapters for ready in ranks])
        del combined.adapters[:]
        combined.adapters.extend(held)
        for digest in sorted(others):
            self.drop_adapter(digest)
        return combined

    def submit(self, plan: Plan) -> None:
        """Sends a plan to all ranks. Raises WorkerDied."""
        message, num_tokens = encode_plan(plan), sum(plan.counts)
        media = [len(item.data) for item in plan.encode]
        if self._kept_changes:
            message.kept_changes.CopyFrom(self._kept_changes.take())
        frame = pack(WorkerCommand(step_plan=message))
        for rank in self._ranks:
            self._socket.send(rank, frame)
            rank.hang_detector.sent(num_tokens, media)
        self._submitted.append(plan)

    def track_cache(self) -> KeptChanges:
        """Returns what a prefix cache tells its changes to: with each plan, before a wait for events and, of
        losses, at once, all ranks are told."""
        self._kept_changes = KeptChanges(lambda: self._send_cache_changes(losses_alone=True))
        return self._kept_changes

    def _send_cache_changes(self, *, losses_alone: bool) -> None:
        """Does not raise WorkerDied: the next wait raises it."""
        if not self._kept_changes:
            return
        changes = self._kept_changes.take_losses() if losses_alone else self._kept_changes.take()
        self._tell(WorkerCommand(kept_changes=changes))

    def compile_grammar(self, number: int, grammar: str) -> None:
        """Tells rank 0, which samples, to compile a grammar, whenever it gets to it.

        Does not raise WorkerDied: a request that arrives then is not at fault. The next wait raises it.
        """
        command = WorkerCommand(compile_grammar=CompileGrammar(number=number, grammar=grammar))
        with contextlib.suppress(WorkerDied):
            self._socket.send(self._ranks[0], pack(command))

    def take_compiled(self) -> list[int]:
        """Returns the numbers of grammars that rank 0 has compiled since the last call."""
        return self._socket.asides.take_compiled()

    def load_adapter(self, number: int, source: str, digest: bytes, max_bytes: int) -> None:
        """Tells all ranks to load an adapter. Does not raise WorkerDied: the next wait raises it."""
        order = LoadAdapter(number=number, source=source, digest=digest, max_bytes=max_bytes)
        self._tell(WorkerCommand(load_adapter=order))

    def drop_adapter(self, digest: bytes) -> None:
        """Tells all ranks to forget an adapter. Does not raise WorkerDied: the next wait raises it."""
        self._tell(WorkerCommand(drop_adapter=DropAdapter(digest=digest)))

    def take_adapters(self) -> list[AdapterLoaded]:
        """Returns what all ranks have answered to load_adapter() since the last call."""
        return self._socket.asides.take_adapters()

    def read_blocks(self, order: ReadBlocks) -> None:
        """Tells the worker to read blocks, and before that what they do not hold any more. Does not raise
        WorkerDied: the next wait raises it."""
        self._send_cache_changes(losses_alone=True)
        self._tell(WorkerCommand(read_blocks=order))

    def stop_reading(self, number: int) -> None:
        """Does not raise WorkerDied: the next wait raises it."""
        self._tell(WorkerCommand(stop_reading=StopReading(number=number)))

    def take_blocks_read(self) -> list[BlocksRead]:
        """Returns the answers to read_blocks() since the last call."""
        return self._socket.asides.take_blocks_read()

    def _tell(self, command: WorkerCommand) -> None:
        """Sends a command that is not a plan to all ranks."""
        frame = pack(command)
        for rank in self._ranks:
            with contextlib.suppress(WorkerDied):
                self._socket.send(rank, frame)

    def collect(self) -> Result:
        """Waits until all ranks have executed the oldest plan without a result; returns that of rank 0.

        Raises WorkerDied, Stopped.
        """
        messages = []
        for rank in self._ranks:
            messages.append(self._socket.wait(rank))
            took = messages[-1].step_result
            rank.hang_detector.ended(took.duration_us / 1e6, took.encode_us / 1e6)
        first, plan = messages[0].step_result, self._submitted.popleft()
        for rank, message in zip(self._ranks, messages, strict=True):
            try:
                if rank.number == 0:
                    result = decode_result(first, plan)
                else:
                    check_same_step(first, message.step_result)
            except ValueError as error:
                kind = message.WhichOneof("message")
                raise WorkerDied(f"cannot talk to {rank.name}", f"{kind}: {error}") from error
        return result

    def await_result(self, seconds: float) -> None:
        """Raises WorkerDied, Stopped."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._socket.has_news:
            if self._socket.descriptor in self._socket.poll(min(left, LOOK_S)):
                self._socket.receive()
            elif left >= LOOK_S:  # a shorter wait is followed by a look anyway
                self._socket.look(LOOK_S)

    def await_burst(self, inbox: Inbox) -> None:
        """Raises WorkerDied, Stopped."""
        with self._socket.watching(inbox.fileno()):
            while not self._socket.has_news:
                ready = self._socket.poll(LOOK_S)
                if self._socket.descriptor in ready:
                    self._socket.receive()
                elif inbox.fileno() in ready:
                    inbox.acknowledge()
                    if inbox:
                        self._socket.send(self._ranks[0], pack(WorkerCommand(end_burst=EndBurst())))
                        return
                else:
                    self._socket.look(LOOK_S)

    def wait_for(self, inbox: Inbox) -> None:
        """Waits, while there is nothing to compute, until there may be events. Raises WorkerDied, Stopped."""
        self._send_cache_changes(losses_alone=False)
        self._socket.look(_IDLE_LOOK_S)  # frequent events would otherwise keep this from ever looking
        with self._socket.watching(inbox.fileno()):
            while inbox.fileno() not in (ready := self._socket.poll(_IDLE_LOOK_S)):
                if self._socket.descriptor in ready:
                    self._socket.receive()
                for rank in self._ranks:
                    if rank.messages:
                        raise WorkerDied(f"cannot talk to {rank.name}", "it sent a message without a plan")
                self._socket.look(_IDLE_LOOK_S)
            inbox.acknowledge()

    def dismiss(self) -> None:
        """Kills all ranks: they are not needed, or may not be used any more. close() does nothing then."""
        for rank in self._ranks:
            if rank.child is not None:
                rank.child.close(0.0)
        self._ranks.clear()
        self._socket.close()

    def release(self) -> None:
        """Leaves the ranks to their parent process, for the next engine core or to be ended."""
        self._socket.close()

    def close(self) -> None:
        """Ends all ranks: by Shutdown, and by SIGKILL after SHUTDOWN_GRACE_S."""
        for rank in self._ranks:
            with contextlib.suppress(WorkerDied):
                if rank.peer is not None:
                    self._socket.send(rank, pack(WorkerCommand(shutdown=Shutdown())))
        for rank in self._ranks:
            if rank.child is not None:
                rank.child.close(SHUTDOWN_GRACE_S if rank.peer is not None else 0.0)
        self._socket.close()

    def _start_child(self, number: int, arguments: Sequence[str]) -> WorkerProcess:
        command = ["worker", f"--engine={self._socket.address}", f"--rank={number}", *arguments]
        child = self._start_worker(command)
        self._socket.watch(child.pidfd)
        return child

    def _wait_ready(self, rank: Rank, on_progress: Callable[[str, float], None]) -> Ready:
        while True:
            message = self._socket.wait(rank)
            kind = message.WhichOneof("message")
            if kind == "ready":
                rank.hang_detector.loaded(message.ready.prefill_us_per_token / 1e6)
                return message.ready
            if kind != "load_progress":
                raise WorkerDied(f"cannot talk to {rank.name}", f"{kind} before Ready")
            if rank.number == 0:
                on_progress(message.load_progress.what, message.load_progress.fraction)
            if rank.child is not None:
                rank.child.read_status()  # a full pipe would block it


def combine_ready(ranks: Sequence[Ready]) -> Ready:
    """Returns the Ready of a group: blocks that every rank has, memory and threads of all, the slowest speed.

    Raises WorkerDied when the ranks have not loaded the same model.
    """
    for rank, ready in enumerate(ranks[1:], start=1):
        if _facts(ready) != _facts(ranks[0]):
            raise WorkerDied(
                "the ranks of the worker disagree",
                f"rank 0 has {_describe(ranks[0])}, rank {rank} has {_describe(ready)}",
                SEE_ABOVE,
            )
    combined = Ready()
    combined.CopyFrom(ranks[0])
    combined.num_blocks = min(ready.num_blocks for ready in ranks)
    combined.num_host_blocks = min(ready.num_host_blocks for ready in ranks)
    combined.prefill_us_per_token = max(ready.prefill_us_per_token for ready in ranks)
    combined.swap_us_per_block = max(ready.swap_us_per_block for ready in ranks)
    combined.kv_cache_bytes = sum(ready.kv_cache_bytes for ready in ranks)
    combined.stages = min(ready.stages for ready in ranks)
    combined.num_threads = sum(ready.num_threads for ready in ranks)
    if any(ready.kept_cache != combined.kept_cache for ready in ranks):
        combined.kept_cache.CopyFrom(KeptCache(secret=combined.kept_cache.secret))
    combined.model.weight_bytes = sum(ready.model.weight_bytes for ready in ranks)
    return combined


def check_same_step(first: StepResult, other: StepResult) -> None:
    """Raises ValueError unless a rank has executed the step of rank 0, and sampled nothing or the same."""
    if other.step != first.step:
        raise ValueError(f"step {other.step}, where rank 0 has executed step {first.step}")
    if other.token_ids not in (b"", first.token_ids):
        raise ValueError(f"step {other.step}: its tokens are not those of rank 0")


def _facts(ready: Ready) -> tuple[ModelFacts, str, bool, bool]:
    """Returns what must be equal on all ranks."""
    model = ModelFacts()
    model.CopyFrom(ready.model)
    model.ClearField("weight_bytes")
    return model, ready.device, ready.depends_on_prompt_len, ready.has_states


def _describe(ready: Ready) -> str:
    model = ready.model
    return f"{model.architecture} ({model.dtype}, context {model.max_model_len}) on {ready.device}"
