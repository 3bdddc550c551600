"""Questions to all engine cores at once, for operators and for requests that may be at any of them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from frontend.engine.core import Core, Routing
from frontend.engine.core_list import CoreList
from frontend.errors import EngineNotReady, ServiceError
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import admin_pb2

COMMAND_S = 3.0
"""Seconds until a frontend that does not answer a command is given up: it answers from its event loop."""
FIND_S = 0.5
"""Seconds until a core that does not say whether it has a request is taken not to have it."""


class CoreQuestions:
    """The questions, and what is made of the answers."""

    def __init__(self, cores: CoreList, require: Callable[[], object]) -> None:
        """require: raises EngineNotReady when no core serves."""
        self._cores = cores
        self._require = require

    async def ask(self, call: engine_pb2.Utility) -> list[tuple[Core, engine_pb2.UtilityResult]]:
        """Returns the answers of all cores in use. Raises EngineNotReady."""
        self._require()
        return await ask_all(self._cores.all(), call)

    async def abort_by_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Aborts requests of any frontend at every core; returns the ids that were in flight."""
        call = engine_pb2.Utility(abort_by_ids=engine_pb2.AbortByIds(request_ids=request_ids))
        answers = await self.ask(call)
        known = {name for _, result in answers for name in result.aborted.request_ids}
        return [name for name in request_ids if name in known]

    async def loads(self) -> list[admin_pb2.RankLoad]:
        """Returns the current load of each connected core, by rank."""
        self._require()
        call = engine_pb2.Utility(get_load=engine_pb2.GetLoad())
        loads = []
        for core, result in await ask_all(self._cores.cores, call):
            load = result.load.load
            load.rank = core.rank
            loads.append(load)
        return loads

    async def reset_cache(self) -> None:
        """Empties the prefix cache of each core."""
        self._require()
        call = engine_pb2.Utility(reset_cache=engine_pb2.ResetCache())
        await ask_all(self._cores.cores, call, all_must_answer=True)

    async def where(self, request_id: str, routing: Routing) -> Routing:
        """Returns the routing to the core that has a request in flight; where none has, the given one.

        One core is not asked: it finds out by itself. Of several, each is asked before a request is sent.
        Without other hints, the id stands for a session: calls of one request that begin in the same moment,
        or are sent again when their core dies, meet at the same core.
        """
        cores = [core for core in self._cores.cores if core.serves]
        routing = replace(routing, session_id=routing.session_id or request_id)
        if len(cores) < 2:
            return routing
        asked = [asyncio.create_task(_has(core, request_id)) for core in cores]
        try:
            for answer in asyncio.as_completed(asked, timeout=FIND_S):
                core = await answer
                if core is not None:
                    return replace(routing, rank=core.rank)
        except TimeoutError:
            pass
        finally:
            for task in asked:
                task.cancel()
        return routing

    async def frontends(self) -> list[tuple[admin_pb2.FrontendStatus, Core]]:
        """Returns the frontends that any core is connected to, each with one such core. Raises
        EngineNotReady."""
        call = engine_pb2.Utility(list_frontends=engine_pb2.ListFrontends())
        found: dict[str, tuple[admin_pb2.FrontendStatus, Core]] = {}
        for core, result in await self.ask(call):
            for status in result.frontends.frontends:
                found.setdefault(status.instance_id, (status, core))
        return list(found.values())

    async def command(
        self, core: Core, command: engine_pb2.FrontendCommand
    ) -> admin_pb2.FrontendStatus | None:
        """Returns the status of a frontend after a command, which a core passes on; None: it does not
        answer."""
        call = engine_pb2.Utility(command_frontend=command)
        try:
            result = await asyncio.wait_for(core.utility_calls.ask(call), COMMAND_S)
        except (EngineNotReady, TimeoutError):
            return None
        return result.frontend_status if result.HasField("frontend_status") else None


async def _has(core: Core, request_id: str) -> Core | None:
    """Returns the core if it has a request in flight."""
    call = engine_pb2.Utility(find_request=engine_pb2.FindRequest(request_id=request_id))
    try:
        result = await core.utility_calls.ask(call)
    except EngineNotReady:
        return None
    return core if result.found.in_flight else None


async def ask_all(
    cores: Sequence[Core], call: engine_pb2.Utility, *, all_must_answer: bool = False
) -> list[tuple[Core, engine_pb2.UtilityResult]]:
    """Returns the replies of all connected cores in use. Raises EngineNotReady when there are none, or when
    one is missing and all_must_answer."""
    asked = [core for core in cores if core.epoch and not core.differs]
    answers = await asyncio.gather(*(core.utility_calls.ask(call) for core in asked), return_exceptions=True)
    found = []
    failed: BaseException = EngineNotReady("the engine went away")
    for core, answer in zip(asked, answers, strict=True):
        if isinstance(answer, engine_pb2.UtilityResult):
            found.append((core, answer))
            continue
        failed = answer
        if not isinstance(answer, ServiceError) or (all_must_answer and core.epoch):
            raise answer
    if not found:
        raise failed
    return found
