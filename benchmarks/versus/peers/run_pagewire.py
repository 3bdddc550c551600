"""Our own service, used in the ordinary way: `pagewire serve`, and its Python client over gRPC."""

import asyncio
from collections.abc import Sequence

from harness import Request, Settings, Trace, serve

from pagewire import AsyncClient, SamplingParams, __version__, flags
from pagewire.config import ServeConfig
from pagewire.local_service import Service


class Pagewire:
    """The service with its processes, and a client here."""

    def __init__(self, settings: Settings) -> None:
        given = [
            settings.model,
            "--port=0",
            "--log-level=warning",
            "--dtype=bfloat16",
            f"--max-model-len={settings.max_model_len}",
            f"--max-num-seqs={settings.max_num_seqs}",
            "--kv-cache-memory=4",  # as vLLM's on a CPU
            *([f"--quantization={settings.weights}"] if settings.weights.startswith("int") else []),
            *settings.flags,
        ]
        self._service = Service(flags.parse(ServeConfig, given, command="serve"))
        self._runner = asyncio.Runner()
        self.client = self._runner.run(self._connect())
        self.versions = {"pagewire": __version__}

    def prepare(self, requests: Sequence[Request]) -> None:
        """Nothing."""

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """Streams of token ids."""
        return self._runner.run(self.stream_all(requests))

    async def _connect(self) -> AsyncClient:
        client = AsyncClient(self._service.address)
        await client.wait_ready()
        return client

    async def stream_all(self, requests: Sequence[Request]) -> list[Trace]:
        """A stream for each."""
        return list(await asyncio.gather(*(self._stream(request) for request in requests)))

    async def _stream(self, request: Request) -> Trace:
        trace = Trace()
        async with self.client.stream(request.prompt, params_of(request)) as stream:
            async for delta in stream:
                trace.take(len(delta.token_ids))
        return trace


def params_of(request: Request) -> SamplingParams:
    """Token ids alone."""
    return SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True, text=False)


if __name__ == "__main__":
    serve(Pagewire)
