"""The worker of our service alone: its steps, one after the other, without sockets and scheduler.

Prompts are computed one by one, and then all requests decode together.
"""

from collections.abc import Sequence

from benchmarks.steps.cpu_worker import BLOCK_SIZE, load_model, model_options
from benchmarks.steps.plans import new_row, plan, removal
from benchmarks.versus.peers.harness import Peer, Request, Settings, Trace, serve
from pagewire import __version__

MEAN_TOKENS = 1024
"""Of a request, at most: what the cache has room for."""


class Worker(Peer):
    """Its model, and blocks of the cache for all requests of a workload."""

    def __init__(self, settings: Settings) -> None:
        options, _ = model_options(None).parse_known_args(settings.serve)  # others are the service's
        rows = settings.max_num_seqs
        blocks = rows * MEAN_TOKENS // BLOCK_SIZE
        self._runner, _ = load_model(options, rows, blocks, settings.max_model_len)
        self.versions = {"pagewire": __version__}

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """A request is a row."""
        traces, used, unfinished = [Trace() for _ in requests], 0, [*range(len(requests))]
        for row, (request, trace) in enumerate(zip(requests, traces, strict=True)):
            prompt, first = len(request.prompt), used
            used += -(-(prompt + request.output) // BLOCK_SIZE)
            made = new_row(row, request.prompt, prompt, range(first, used))
            self._runner.execute(plan([row], 0, prompt, [made]))
            trace.take(1)
        while unfinished := [row for row in unfinished if traces[row].tokens < requests[row].output]:
            starts = [len(requests[row].prompt) + traces[row].tokens - 1 for row in unfinished]
            self._runner.execute(plan(unfinished, starts, [1] * len(unfinished)))
            for row in unfinished:
                traces[row].take(1)
        self._runner.execute(removal(range(len(requests))))
        return traces


if __name__ == "__main__":
    serve(Worker)
