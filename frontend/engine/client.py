"""The frontend's side of the engine hop: connects to the engine cores, and knows what they have in common.

Requests are sent by a Dispatcher (dispatcher.py). Cores come and go with their addresses, too. A stream may
continue on any core, so all of them must compute the same: architecture, dtype, vocabulary, context length,
end tokens and size of the weights. (Two checkpoints of one shape are not told apart.)
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from frontend.call.serving_state import FAILED, SERVING, ServingState
from frontend.engine.adapters import AdapterCatalogue
from frontend.engine.cache_feed import CacheFeeds
from frontend.engine.connection import EngineConnection
from frontend.engine.core import ANYWHERE, Core, Routing, Sink
from frontend.engine.core_list import CoreList, CoreQuestions, GivenAddresses
from frontend.engine.dispatcher import Dispatcher
from frontend.engine.events import EngineEvents
from frontend.engine.journal import Journal
from frontend.engine.prefixes import SentPrefixes
from frontend.engine.socket import EngineSocket, MakeSocket
from frontend.errors import EngineDead, EngineNotReady
from pagewire import __version__
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import ModelFacts, Welcome
from pagewire.ipc.transport import new_identity
from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)

HEARTBEAT = 0.5
"""Seconds between two Hello messages, and between two checks of the address list."""
SILENCE = 6
"""Unanswered Hellos after which a connected core counts as hung. A core answers from its step loop, also
while it waits for a step to end. Hellos are counted instead of seconds, so that a frontend (or machine) that
was itself suspended blames no core."""
_SMALLEST = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "max_priority", "max_draft_tokens")
"""Fields of a Welcome of which the smallest counts: a request may have to move to any core."""


class EngineClient:
    """All engine cores as one. Methods belong to the event loop's thread."""

    def __init__(
        self,
        addresses: GivenAddresses | str,
        state: ServingState,
        resume_timeout: float = 0.0,
        make_socket: MakeSocket = EngineSocket,
        random: Random | None = None,
        *,
        ready_timeout: float = 0.0,
        share_prefixes: bool = False,
    ) -> None:
        """addresses: of the cores; a fixed one may be given as a string. resume_timeout: seconds that
        requests wait for a core when theirs is lost and no other serves. ready_timeout: seconds that new
        requests wait for one, once a core has served. share_prefixes: a request whose prefix another core
        was sent names it, so that its blocks are copied."""
        self.identity = new_identity()
        self.facts: engine_pb2.Welcome | None = None
        """What holds at every core that has ever served; None before the first."""
        self.events = EngineEvents()
        """The last deaths and resumptions."""
        self.cache_feeds = CacheFeeds(lambda: self.cores)
        self.hello = engine_pb2.Hello(frontend_id=self.identity.hex(), version=__version__)
        """How this frontend presents itself to cores, without an epoch."""
        self.obey: Callable[[engine_pb2.FrontendCommand], admin_pb2.FrontendStatus] | None = None
        """Carries out an operator's command that came to another frontend; None: none is carried out."""
        source = GivenAddresses([addresses]) if isinstance(addresses, str) else addresses
        self._list = CoreList(source, self._connect)
        self.questions = CoreQuestions(self._list, self.require)
        self.adapters = AdapterCatalogue(self.questions, lambda: self.facts)
        """Those that requests can name."""
        self._state = state
        self._make_socket = make_socket
        self._journal = Journal(resume_timeout)
        self._share_prefixes, prefixes = share_prefixes, SentPrefixes() if share_prefixes else None
        parts = self._journal, self.events, random or Random(), prefixes
        self._dispatcher = Dispatcher(lambda: self.cores, *parts)
        self._ready_timeout, self._resume_timeout = ready_timeout, resume_timeout
        self._model: engine_pb2.ModelFacts | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts connecting and sending heartbeats. Raises StartupError."""
        self._list.start()
        self._heartbeat = asyncio.create_task(self._beat(), name="heartbeat")

    async def close(self) -> None:
        """Fails all requests and disconnects."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])
        self._journal.fail_all(EngineDead())
        for core in self._list.all():
            core.close()

    @property
    def cores(self) -> list[EngineConnection]:
        """Those on the address list, by rank."""
        return self._list.cores

    @property
    def journal(self) -> Journal:
        """The requests in flight, including those that wait for another core."""
        return self._journal

    @property
    def protocol_errors(self) -> int:
        """Messages from cores that could not be interpreted."""
        return sum(core.protocol_errors for core in self._list.all())

    @property
    def serves(self) -> bool:
        """True when requests can be sent."""
        return self.facts is not None and self._state.engine == SERVING

    def require(self) -> engine_pb2.Welcome:
        """Returns the facts that the engines agree on. Raises EngineNotReady unless requests can be sent."""
        if self.facts is None or not self.serves:
            name = admin_pb2.ServerState.Name(self._state.engine).removeprefix("SERVER_STATE_").lower()
            raise EngineNotReady(f"the engine is not ready: {name}")
        return self.facts

    def require_known(self, *, begun: bool = False) -> engine_pb2.Welcome:
        """Returns the facts that the engines agree on, as long as a request may be submitted: while no core
        serves it waits. begun: see submit(). Raises EngineNotReady before the first core has served, and
        where nothing waits."""
        return self.facts if self.facts is not None and self._patience(begun) else self.require()

    def submit(
        self,
        request: engine_pb2.AddRequest,
        sink: Sink,
        routing: Routing = ANYWHERE,
        *,
        begun: bool = False,
        media: bytes | bytearray = b"",
    ) -> int:
        """Sends a request whose outputs go to the sink, resending it as often as necessary; while no core
        takes it, it waits for up to ready_timeout. begun: it is part of a call of which a core has had other
        parts, and waits as long as those. media: TokenizedPrompt.packed_media. Returns a ticket for
        release(). Raises EngineNotReady."""
        self.require_known(begun=begun)
        return self._dispatcher.submit(request, sink, routing, self._patience(begun), media)

    def release(self, ticket: int, *, detach: bool = False) -> None:
        """Detaches the sink and aborts what a core still computes for it. Idempotent.

        detach: the client is gone: it may come back for the request, for its disconnect_grace_ms.
        """
        self._dispatcher.release(ticket, detach=detach)

    def waits(self, ticket: int) -> bool:
        """True when no core has the request because its own was lost."""
        return self._journal.waits(ticket)

    # Callbacks of a connection: see frontend.engine.connection.Owner.

    def on_welcome(self, core: Core) -> None:
        """Checks whether a core that has introduced itself serves the same model as the others."""
        before = self._model
        self._model = agree(before, [one.welcome if one.epoch else None for one in self.cores])
        if self._model is None:  # the address of the first core was just removed from the list
            return
        if before is not None and self._model != before:
            log.warning("all engines serve another model than before")
            for entry in self._journal.waiting():
                self._journal.fail(entry, EngineDead())
        for one in self.cores:
            if one.epoch and one.welcome is not None:
                one.differs = difference(self._model, one.welcome.model)
        if core.differs:
            log.error("the engine at %s is not used: it has %s", core.address, core.differs)
        self._combine_facts()
        if core.serves:
            self.events.serves(core)
            assert core.welcome is not None
            if self._share_prefixes and not core.welcome.transfer_namespace:
                why = "it copies no KV blocks (--prefix-cache-key; docs/distributed.md)"
                log.warning("--share-prefixes does nothing at the engine at %s: %s", core.address, why)
            self.adapters.on_welcome(core, core.welcome)
        self.cache_feeds.restart()

    def on_heartbeat(self, core: Core) -> None:
        """Resends waiting requests when a core is known to be alive."""
        if core.serves:
            self._state.set_engine(SERVING)
            if self._journal.num_waiting:
                self._dispatcher.resume()

    def on_lost(self, core: Core) -> None:
        """Resends a lost core's requests to others."""
        self.events.lost(core)
        self._show_state()
        self.cache_feeds.restart()
        self._dispatcher.lose(core)

    def on_leaving(self, core: Core) -> None:
        """Moves a core's requests to others, which copy its blocks."""
        self._show_state()
        self._dispatcher.move(core)

    def on_cache_changes(self, core: Core, changes: engine_pb2.CacheChanges) -> None:
        """Hands changes of a core's prefix cache to the subscriber that watches it."""
        self.cache_feeds.put(core, changes)

    def on_adapters(self, core: Core, table: engine_pb2.AdapterTable) -> None:
        """Takes the adapters that a core names."""
        self.adapters.on_table(core, table)

    def on_command(self, core: Core, command: engine_pb2.FrontendCommand) -> None:
        """Carries out a command that came to another frontend."""
        if self.obey is not None:
            core.reply(command, self.obey(command))

    # The cores.

    def _connect(self, address: str) -> EngineConnection:
        """Raises StartupError."""
        core = EngineConnection(address, self.identity, self, self._dispatcher, self._make_socket)
        core.open()
        return core

    def _patience(self, begun: bool) -> float:
        """Returns the seconds that a request waits while no core serves."""
        return max(self._ready_timeout, self._resume_timeout if begun else 0.0)

    def _combine_facts(self) -> None:
        known = [core.welcome for core in self.cores if core.welcome is not None and not core.differs]
        if known:
            self.facts = combine(known, len(self.cores))

    def _show_state(self) -> None:
        """Sets the state: STARTING until a core has served; after that, whether one does."""
        if any(core.serves for core in self.cores):
            self._state.set_engine(SERVING)
        elif self.facts is not None:
            self._state.set_engine(FAILED)

    async def _beat(self) -> None:
        while True:
            for core in self._list.all():
                core.say_hello()
            await asyncio.sleep(HEARTBEAT)
            for core in self._list.all():
                if core.epoch and core.num_unanswered >= SILENCE:
                    log.warning("the engine at %s is silent", core.address)
                    core.lose()  # its next message makes it welcome us again, like any other
            if self._list.look():
                self._combine_facts()
                self._show_state()
                self.cache_feeds.restart()
            self._list.close_idle()


def agree(known: ModelFacts | None, present: Sequence[Welcome | None]) -> ModelFacts | None:
    """Returns the model that counts: the first core's, until all cores are connected and none of them has it.

    present: by rank; None for a core that is away and may come back unchanged.
    """
    welcomes = [welcome for welcome in present if welcome is not None]
    if not welcomes or any(welcome.model == known for welcome in welcomes):
        return known
    if known is None or len(welcomes) == len(present):
        return welcomes[0].model
    return known


def difference(known: ModelFacts, model: ModelFacts) -> str:
    """Describes how two models differ, for people; empty when they do not."""
    names = (field.name for field in ModelFacts.DESCRIPTOR.fields)
    return ", ".join(
        f"{name} {_text(model, name)} instead of {_text(known, name)}"
        for name in names
        if getattr(model, name) != getattr(known, name)
    )


def combine(welcomes: Sequence[Welcome], num_ranks: int) -> Welcome:
    """Returns what holds at each of these cores (at least one); other fields are the first core's.

    num_ranks: number of cores, including those that are away.
    """
    combined = Welcome()
    combined.CopyFrom(welcomes[0])
    for name in _SMALLEST:
        setattr(combined, name, min(getattr(welcome, name) for welcome in welcomes))
    combined.parallelism.data = num_ranks
    return combined


def _text(model: ModelFacts, name: str) -> str:
    value = getattr(model, name)
    return str(list(value)) if name == "eos_token_ids" else str(value)
