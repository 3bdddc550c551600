"""Our own service, used in the ordinary way: `pagewire serve`, and its Python client over gRPC.

Each request has a stream; with PEER_MULTIPLEXED one stream has all of them, as of a gateway or a batch job.
"""

import asyncio
import os
from collections.abc import Sequence
from itertools import cycle

from benchmarks.service.serve import run_request, send_all
from benchmarks.versus.peers.harness import Peer, Request, Settings, Trace, serve
from pagewire import AsyncClient, __version__, flags
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire_bench.trace import Trace as Sent


class Pagewire(Peer):
    """The service with its processes, and a client here."""

    def __init__(self, settings: Settings) -> None:
        self._service = Service(flags.parse(ServeConfig, list(settings.serve), command="serve"))
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._connect())
        self._adapters = settings.adapters
        self.versions = {"pagewire": __version__}

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """Streams of token ids."""
        sent = self._runner.run(self._send(requests))
        return [Trace(each.due, each.arrivals) for each in sent]

    async def _send(self, requests: Sequence[Request]) -> list[Sent]:
        if not self._adapters:
            return await send_all(self._client, requests, multiplexed="PEER_MULTIPLEXED" in os.environ)
        named = zip(requests, cycle(self._adapters), strict=False)
        return await asyncio.gather(
            *(run_request(self._client, each, 0.0, model=name) for each, name in named)
        )

    async def _connect(self) -> AsyncClient:
        client = AsyncClient(self._service.address)
        await client.wait_ready()
        return client


if __name__ == "__main__":
    serve(Pagewire)
