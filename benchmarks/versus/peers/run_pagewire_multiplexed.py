"""Our own service with all requests over one stream, as a gateway or a batch job has them."""

from collections.abc import Sequence

from harness import Request, Trace, serve
from run_pagewire import Pagewire, params_of


class Multiplexed(Pagewire):
    """The same service, and the same client."""

    async def stream_all(self, requests: Sequence[Request]) -> list[Trace]:
        """One stream for all."""
        async with self.client.multiplex() as many:
            traces = {many.send(request.prompt, params_of(request)): Trace() for request in requests}
            async for request, delta in many:
                if delta is None:
                    raise RuntimeError(f"a request failed: {request.error}")
                traces[request].take(len(delta.token_ids))
        return list(traces.values())


if __name__ == "__main__":
    serve(Multiplexed)
