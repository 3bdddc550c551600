"""A client that embeds prompts: asks one frontend after another until there is an answer, and checks it."""

import asyncio
from collections.abc import Callable

import numpy as np
from google.rpc import code_pb2

from frontend.errors import ServiceError
from pagewire.v1 import pooling_pb2
from pagewire_simulated.scores import contexts_of
from pagewire_simulated.tokens import GAMMA, mix
from tests.simulation.adapters import invocation_start, may_fail
from tests.simulation.frontends import FrontendProcess
from tests.simulation.machine import Machine
from tests.simulation.workload import MODEL, EmbedJob

_PAUSE_S = 0.3


class EmbeddingClient:
    """One call. `outcome` is what became of it."""

    def __init__(
        self, machine: Machine, job: EmbedJob, servers: Callable[[], list[FrontendProcess | None]]
    ) -> None:
        """servers: the frontends now, None where one is down."""
        self.outcome = ""
        self._machine, self._job, self._servers = machine, job, servers
        self._name = f"embedding-{job.number}"

    async def run(self) -> None:
        """From the first attempt to the last check."""
        inputs = [{"token_ids": {"ids": prompt}} for prompt in self._job.prompts]
        request = pooling_pb2.EmbedRequest(inputs=inputs, adapter=self._job.adapter)
        place = self._job.place
        try:
            while (columns := await self._attempt(request, place)) is None:
                place += 1
                await asyncio.sleep(_PAUSE_S)
            self._check(columns)
            self.outcome = "embedded"
        except asyncio.CancelledError:
            self.outcome = "cancelled"
        except ServiceError as error:
            self.outcome = error.reason
            self._check_error(error)
        self._machine.last_progress = self._machine.loop.time()
        self._machine.trace(self._name, "ends:", self.outcome)

    async def _attempt(self, request: pooling_pb2.EmbedRequest, place: int) -> list[bytes] | None:
        """Returns the vectors; None: there is no server, or it went away. Raises ServiceError."""
        servers = self._servers()
        server = servers[place % len(servers)]
        if server is None:
            return None
        task = server.embed(request)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.cancelled():
            return None
        error = task.exception()
        if isinstance(error, ServiceError) and error.code == code_pb2.UNAVAILABLE:
            return None
        if error is not None:
            raise error
        return task.result().columns

    def _check(self, columns: list[bytes]) -> None:
        """All vectors are with one adapter, that of the name at some time."""
        possible = [self._expected(digest) for digest in self._job.adapters or {b"": ()}]
        assert columns in possible, f"{self._name}: wrong vectors"

    def _expected(self, digest: bytes) -> list[bytes]:
        made = []
        for prompt in self._job.prompts:
            start = invocation_start(prompt, self._job.adapters.get(digest, ()))
            shift = int.from_bytes(digest[:8], "little") if start is not None else 0
            context = int(contexts_of(np.array(prompt))[-1]) + shift
            state = [mix(context + GAMMA * (e + 1)) / 2.0**63 - 1 for e in range(MODEL["hidden_size"])]
            made.append(np.array(state, np.float32).tobytes())
        return made

    def _check_error(self, error: ServiceError) -> None:
        job, deaths = self._job, self._machine.num_worker_deaths
        is_possible = may_fail(error.reason, job.adapter, job.adapters, deaths) or error.reason == "NO_LOGITS"
        assert is_possible, f"{self._name}: {error.reason}: {error}"
