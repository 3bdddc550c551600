"""Drain and Resume for other frontends: they are found through the engine cores, which pass commands on.

A frontend answers a command from its event loop, with its state. One that does not answer is reported with an
error, and the others obey all the same.
"""

import asyncio
import socket

from frontend.call.serving_state import ServingState
from frontend.engine.client import EngineClient
from frontend.engine.core import Core
from frontend.errors import FrontendNotFound, InvalidRequest, ShuttingDown
from frontend.rpc.grpc_server import host_in_address
from frontend.rpc.shutdown import Drain
from frontend.streams.request_registry import RequestRegistry
from frontend.validation.rules import seconds_of
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import admin_pb2

SHORTEST_ID = 4
"""Hexadecimal digits of an instance_id that name a frontend, at least."""
MAX_NAME_BYTES = 256
NO_ANSWER = "it does not answer"

_SHOWN_ID = 8
_MOST_LISTED = 16

Known = tuple[admin_pb2.FrontendStatus, Core]
"""A frontend, and a core that is connected to it."""
Order = admin_pb2.DrainRequest | admin_pb2.ResumeRequest


def address_of(host: str, port: int) -> str:
    """Returns "host:port" for operators: a host that stands for all interfaces is this machine's name."""
    if host in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
    return f"{host_in_address(host)}:{port}"


class Fleet:
    """All frontends of a service, as this one knows them."""

    def __init__(
        self, engine: EngineClient, drain: Drain, state: ServingState, requests: RequestRegistry
    ) -> None:
        self._engine = engine
        self._drain = drain
        self._state = state
        self._requests = requests

    async def order(self, order: Order) -> list[admin_pb2.FrontendStatus]:
        """Makes the frontends obey that an order names; returns them as they are then. Raises InvalidRequest,
        FrontendNotFound, ShuttingDown, EngineNotReady."""
        if order.frontend and order.all_frontends:
            raise InvalidRequest({"frontend": "cannot be combined with all_frontends"})
        if len(order.frontend.encode()) > MAX_NAME_BYTES:
            raise InvalidRequest({"frontend": f"must be at most {MAX_NAME_BYTES} bytes"})
        if isinstance(order, admin_pb2.DrainRequest):
            seconds_of(order.timeout, "timeout")
        if not (order.all_frontends or order.frontend):
            self._carry_out(order)
            return [self._status()]
        known = await self._engine.questions.frontends()
        if order.frontend:
            known = [_pick(known, order.frontend)]
        return list(await asyncio.gather(*(self._tell(order, status, core) for status, core in known)))

    def obey(self, command: engine_pb2.FrontendCommand) -> admin_pb2.FrontendStatus:
        """Carries out a command of another frontend; returns what has become of this one."""
        error = ""
        try:
            self._carry_out(command.drain if command.HasField("drain") else command.resume)
        except (InvalidRequest, ShuttingDown) as problem:
            error = problem.message
        status = self._status()
        status.error = error
        return status

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, admin_pb2.DrainRequest):
            has_timeout = order.HasField("timeout")
            self._drain.begin(seconds_of(order.timeout, "timeout") if has_timeout else None)
        else:
            self._drain.resume()

    def _status(self) -> admin_pb2.FrontendStatus:
        hello = self._engine.hello
        return admin_pb2.FrontendStatus(
            instance_id=hello.frontend_id,
            name=hello.name,
            address=hello.address,
            state=self._state.state,
            in_flight_requests=self._requests.num_requests,
        )

    async def _tell(
        self, order: Order, status: admin_pb2.FrontendStatus, core: Core
    ) -> admin_pb2.FrontendStatus:
        command = engine_pb2.FrontendCommand(frontend=bytes.fromhex(status.instance_id))
        if isinstance(order, admin_pb2.DrainRequest):
            command.drain.SetInParent()
            if order.HasField("timeout"):
                command.drain.timeout.CopyFrom(order.timeout)
        else:
            command.resume.SetInParent()
        answer = await self._engine.questions.command(core, command)
        if answer is None:
            status.error = NO_ANSWER
            return status
        return answer


def _pick(known: list[Known], name: str) -> Known:
    """Returns the one frontend that a name stands for. Raises FrontendNotFound, InvalidRequest."""
    exact = [one for one in known if name in (one[0].instance_id, one[0].name, one[0].address)]
    named = exact or [
        one for one in known if len(name) >= SHORTEST_ID and one[0].instance_id.startswith(name)
    ]
    if not named:
        raise FrontendNotFound(name, _listed(known))
    if len(named) > 1:
        raise InvalidRequest({"frontend": f"stands for several: {_listed(named)}"})
    return named[0]


def _listed(known: list[Known]) -> str:
    """Returns frontends in words: names, addresses and the digits that tell them apart."""
    found = [f"{one.name or 'frontend'} ({one.instance_id[:_SHOWN_ID]}) at {one.address}" for one, _ in known]
    return ", ".join(found[:_MOST_LISTED]) + (", ..." if len(found) > _MOST_LISTED else "")
