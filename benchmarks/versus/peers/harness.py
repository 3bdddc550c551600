"""A peer's side of the comparison: a line of JSON in, a line out. Runs in the peer's own environment.

    first line out    {"versions": {...}}                 the model is loaded
    each line in      [{"prompt": [ids], "output": n}, ...]
    its answer        {"seconds": s, "sent": [s, ...], "arrivals": [[[s, tokens], ...], ...]}

Times are in seconds since the requests were handed over, which happens to all of them at once. What a peer
prints goes to standard error. Needs nothing but Python 3.10.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol


@dataclass(frozen=True)
class Settings:
    """What all peers are given alike."""

    model: str
    """What this peer reads: a folder or a file."""
    weights: str
    """bf16, int8 or int4."""
    threads: int
    max_model_len: int
    max_num_seqs: int
    cache_gb: int
    """Room for keys and values, where a peer wants to be told."""
    serve: Sequence[str] = ()
    """The command of a server, in which {port} is a free one; of our own service the arguments."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Those of a server."""
    adapters: Sequence[str] = ()
    """Names of adapters (LoRA) that requests take turns to have; none: the model answers alone."""


@dataclass(frozen=True)
class Request:
    """Token ids to continue, greedily and past any end, and the number of tokens to make."""

    prompt: list[int]
    output: int


@dataclass
class Trace:
    """Of one request."""

    sent: float = field(default_factory=perf_counter)
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    def take(self, tokens: int) -> None:
        """So many have come just now."""
        if tokens:
            self.arrivals.append((perf_counter(), tokens))

    @property
    def tokens(self) -> int:
        """That have come so far."""
        return sum(tokens for _, tokens in self.arrivals)


class Peer(Protocol):
    """What a script of this folder derives. It is made once, with its model loaded."""

    versions: dict[str, str]

    def prepare(self, requests: Sequence[Request]) -> None:
        """Does what need not be timed, such as making room for so many sequences: by default nothing."""

    def run(self, requests: Sequence[Request]) -> list[Trace]:
        """All at once; returns when all are done, in the order of the requests."""


def serve(make: Callable[[Settings], Peer]) -> None:
    """Until standard input ends. The settings are the first argument."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = make(Settings(**json.loads(sys.argv[1])))
    print(json.dumps({"versions": peer.versions}), file=answers)
    for line in sys.stdin:
        requests = [Request(**request) for request in json.loads(line)]
        peer.prepare(requests)
        start = perf_counter()
        traces = peer.run(requests)
        seconds = perf_counter() - start
        answer = {
            "seconds": seconds,
            "sent": [trace.sent - start for trace in traces],
            "arrivals": [[(at - start, tokens) for at, tokens in trace.arrivals] for trace in traces],
        }
        print(json.dumps(answer), file=answers)
