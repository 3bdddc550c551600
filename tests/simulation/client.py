"""A client: sends a request, reads its stream as the client library does, and believes nothing.

What it must receive is known before it asks (expected.py). It checks every message when it comes, and
at the end that the end was one that could be.
"""

import asyncio
from collections.abc import Callable

import grpc

from frontend.errors import ServiceError
from pagewire.v1 import generation_pb2
from pagewire_client.errors import RpcError, Unavailable, from_status
from pagewire_client.transport.recovery import Recovery
from tests.simulation.adapters import may_fail
from tests.simulation.checks import Checks
from tests.simulation.frontends import Deliver, FrontendProcess
from tests.simulation.machine import Machine
from tests.simulation.workload import Job

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_UNREACHED = "failed to connect to all addresses"


class Client:
    """One job. `outcome` is what became of it."""

    def __init__(
        self,
        machine: Machine,
        job: Job,
        servers: Callable[[], list[FrontendProcess | None]],
    ) -> None:
        """servers: the frontends now, None where one is down."""
        self.outcome = ""
        self.is_aborted = False  # an operator has asked for it
        self._machine, self._job, self._servers = machine, job, servers
        self._name = f"job-{job.number}"
        self._loop = machine.loop
        self._start = 0.0
        self._checks = Checks(job)
        self._is_continued = False
        self._half_open: asyncio.Task[None] | None = None  # a call that broke on this side alone
        self._breaks_after = job.breaks_after  # None: the connection has broken, or does not break
        self._recovery = self._new_recovery()

    async def run(self) -> None:
        """From the first word to the last check."""
        self._start = self._loop.time()
        try:
            await self._call_until_the_end()
        except asyncio.CancelledError:
            self.outcome = "cancelled"
        except RpcError as error:
            self.outcome = error.reason or error.code.name
            self._check_error(error)
        else:
            self.outcome = "complete"
            self._checks.check_complete(self._recovery.generation)
        if self._half_open is not None:
            self._half_open.cancel()  # the frontend's pings are not answered
            await asyncio.gather(self._half_open, return_exceptions=True)
        self._machine.last_progress = self._loop.time()
        self._machine.trace(self._name, "ends:", self.outcome)

    def _new_recovery(self) -> Recovery:
        servers = self._servers()
        return Recovery(self._job.request, len(servers), self._job.place, self._job.timeout, self._loop.time)

    async def _call_until_the_end(self) -> None:
        """As AsyncStream does. A request of which nothing has come, since no frontend served, is sent
        anew."""
        self._recovery = self._new_recovery()
        while True:
            request, left = self._recovery.attempt()
            try:
                return await self._call(request, left)
            except RpcError as error:
                if self._recovery.is_complete_despite(error):
                    return
                assert error.reason != "ENGINE_DEAD", f"{self._name}: no death lasts so long"
                pause = self._recovery.after(error)
                if pause is None:
                    if not isinstance(error, Unavailable) or self._recovery.generation.outputs:
                        raise
                    self._recovery, pause = self._new_recovery(), 0.3
            await asyncio.sleep(pause)

    async def _call(self, request: generation_pb2.GenerateRequest, left: float | None) -> None:
        """One attempt. Raises RpcError."""
        server = self._servers()[self._recovery.server]
        self._is_continued = bool(request.continuation.sequences)
        self._machine.trace(self._name, "asks", server.name if server else "no server")
        if server is None:
            raise from_status(grpc.StatusCode.UNAVAILABLE, _UNREACHED, ())
        task = server.serve(request, left, self._hears(), whole=self._job.whole)
        half_open_after = self._job.half_open_after if self._half_open is None else None
        times = [after for after in (half_open_after, self._breaks_after) if after is not None]
        try:
            done, _ = await asyncio.wait([task], timeout=min(times, default=None))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if not done and min(times) == self._breaks_after:
            self._breaks_after = None
            task.cancel()
        elif not done:
            self._half_open = task
        if not done or task.cancelled():
            raise from_status(grpc.StatusCode.UNAVAILABLE, "Socket closed", ())
        if (error := task.exception()) is not None:
            raise _to_rpc_error(error)

    def _hears(self) -> Deliver:
        """Returns what takes the messages of a call, and loses them once it is half open."""
        is_after = self._half_open is not None

        async def receive(message: generation_pb2.GenerateResponse) -> None:
            if is_after or self._half_open is None:
                await self._receive(message)

        return receive

    async def _receive(self, message: generation_pb2.GenerateResponse) -> None:
        """A message comes; the next one is wanted when this returns."""
        self._machine.last_progress = self._loop.time()
        response = generation_pb2.GenerateResponse()
        response.CopyFrom(message)
        for sequence in response.sequences:
            what = sequence.index, "at", sequence.position, *sequence.token_ids
            self._machine.trace(self._name, "receives", *what)
        outputs = self._recovery.generation.outputs
        self._checks.check_message(response, outputs, is_continued=self._is_continued)
        self._recovery.received(response)
        for output in outputs:
            seconds = self._loop.time() - self._start
            self._checks.check_output(output, seconds, is_aborted=self.is_aborted)
        await asyncio.sleep(self._job.reading)

    def _check_error(self, error: RpcError) -> None:
        """Whether this could happen."""
        possible = {
            "REQUEST_QUARANTINED": self._job.poison is not None,
            "NO_LOGITS": True,  # see World: only where the workload breaks tokens
            "CONTEXT_LENGTH_EXCEEDED": self._job.is_refused,
            "DEADLINE_UNREACHABLE": self._job.timeout is not None and not self._has_tokens(),
        }
        job, deaths = self._job, self._machine.num_worker_deaths
        of_adapter = may_fail(error.reason, job.adapter, job.adapters, deaths)
        is_possible = of_adapter or possible.get(error.reason, False)
        assert is_possible, f"{self._name}: {error.reason}: {error}"

    def _has_tokens(self) -> bool:
        return any(output.token_ids for output in self._recovery.generation.outputs)


def _to_rpc_error(error: BaseException) -> RpcError:
    """What the client library makes of it."""
    if not isinstance(error, ServiceError):
        raise error
    made = from_status(_CODES[error.code], error.message, ())
    made.reason = error.reason
    return made
