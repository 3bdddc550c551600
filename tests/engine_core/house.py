"""A core, its worker and its frontends in one process and one thread, for tests of the step loop."""

from math import inf

from google.protobuf.message import Message

from engine_core.adapters.sources import NO_ADAPTERS, AdapterOptions
from engine_core.context import Identity
from engine_core.core import EngineCore
from engine_core.intake.overload import UNBOUNDED, QueueBounds
from engine_core.io.inbox import FrontendGone, Inbox, Received
from engine_core.io.process_control import Stopped
from engine_core.kv_transfer.pulls import NO_TRANSFER, TransferOptions
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import (
    EngineMessage,
    FrontendMessage,
    RequestFailed,
    Welcome,
)
from tests.engine_core.fakes import LIMITS, FakeWorker, Ledger

EPOCH = 77


class StoppingWorker(FakeWorker):
    """A fake worker that an idle core can wait for."""

    stopped = False

    def await_result(self, seconds: float) -> None:
        """Returns: the result is there already."""

    def wait_for(self, inbox: Inbox) -> None:
        """Raises Stopped: no event can arrive."""
        assert self.stopped, "the core waits though there is something to do"
        raise Stopped


class House:
    """A core, its worker, and frontends that only exist as names."""

    def __init__(
        self,
        blocks: int = 64,
        rows: int = 8,
        budget: int = 64,
        ahead: bool = False,
        host_blocks: int = 0,
        prefix_cache: bool = True,
        bounds: QueueBounds = UNBOUNDED,
        adapters: AdapterOptions = NO_ADAPTERS,
        transfer: TransferOptions = NO_TRANSFER,
        drain_timeout: float = 0.0,
        encoder_budget: int = 0,
        media_memory: float = inf,
        stages: int = 1,
    ) -> None:
        self.inbox = Inbox()
        self.sent: list[tuple[bytes, EngineMessage]] = []
        self.now = 0.0
        self.worker = StoppingWorker(blocks, 4, host_blocks)
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=4,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
            num_host_blocks=host_blocks,
            prefix_cache=prefix_cache,
            max_num_encoder_tokens=encoder_budget,
            stages=stages,
        )
        self.worker.encoder_capacity, self.worker.encoder_budget = budget, encoder_budget or budget
        self.core = EngineCore(
            Identity(Welcome(epoch=EPOCH), LIMITS),
            self.scheduler,
            self.worker,
            self.inbox,
            lambda frontend, message: self.sent.append((frontend, message)),
            lambda: self.now,
            ahead=ahead,
            bounds=bounds,
            adapters=adapters,
            transfer=transfer,
            drain_timeout=drain_timeout,
            media_memory=media_memory,
        )
        self.ledger = Ledger()

    def put(self, message: Message, frontend: bytes = b"a") -> None:
        """Delivers a message of a frontend, or of another core: one of the kinds of FrontendMessage."""
        (kind,) = [
            field.name
            for field in FrontendMessage.DESCRIPTOR.fields
            if field.message_type is message.DESCRIPTOR
        ]
        wrapped = FrontendMessage(**{kind: message})  # type: ignore[arg-type]
        self.inbox.put(Received(frontend, wrapped, self.now))

    def lose(self, frontend: bytes) -> None:
        """A frontend cannot be reached any more."""
        self.inbox.put(FrontendGone(frontend))

    def step(self, steps: int = 1) -> list[tuple[bytes, EngineMessage]]:
        """Runs so many steps; returns the messages that were sent in them."""
        before = len(self.sent)
        for _ in range(steps):
            self.core.step()
            self.scheduler.check_invariants()
        return self.sent[before:]

    def run(self) -> None:
        """Steps until nothing is in flight."""
        while self.scheduler.requests or self.inbox:
            self.step()

    def failures(self) -> list[RequestFailed]:
        return [message.request_failed for _, message in self.sent if message.HasField("request_failed")]

    def outputs_of(self, frontend: bytes) -> Ledger:
        ledger = Ledger()
        for owner, message in self.sent:
            if owner == frontend and message.HasField("step_outputs"):
                assert message.step_outputs.epoch == EPOCH
                ledger.take(message.step_outputs)
        return ledger
