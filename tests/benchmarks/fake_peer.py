"""A peer without a model. The output that its first request asks for says what it does: answer, or fail."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/versus/peers"))

from harness import Request, Settings, Trace, serve  # noqa: E402

TOO_FEW, DIES, HANGS = 1001, 1002, 1003


class FakePeer:
    """Gives a token after the other, and says what it was made with."""

    def __init__(self, settings: Settings) -> None:
        print("loading")  # must not be taken for an answer
        self.versions = {"model": settings.model, "threads": str(settings.threads)}
        self._prepared = 0

    def prepare(self, requests: Sequence[Request]) -> None:
        self._prepared = len(requests)

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        assert self._prepared == len(requests)
        wish = requests[0].output
        if wish == DIES:
            raise RuntimeError("no more")
        if wish == HANGS:
            time.sleep(1000)
        traces = [Trace() for _ in requests]
        for request, trace in zip(requests, traces, strict=True):
            for _ in range(request.output - (wish == TOO_FEW)):
                trace.take(1)
        return traces


if __name__ == "__main__":
    serve(FakePeer)
