"""The fixed workloads of published figures. Lengths are the same in every repetition, token ids never are.

A request must give exactly `output` tokens: greedy, past EOS. Where a model's context is shorter
than a workload needs, all lengths of that workload shrink by one factor.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_ID = 16
"""Below are the special tokens of many vocabularies."""


@dataclass(frozen=True)
class Request:
    """Token ids to continue, and the number of tokens to make."""

    prompt: list[int]
    output: int


@dataclass(frozen=True)
class Workload:
    """Requests that are sent at once.

    shape: (prefix, own, output) tokens of each request; the prefix is common to all.
    """

    name: str
    about: str
    shapes: Callable[[], list[tuple[int, int, int]]]

    def factor(self, max_model_len: int) -> float:
        """What all lengths are multiplied with to fit a context, at most 1."""
        return min(1.0, max_model_len / max(sum(shape) for shape in self.shapes()))

    def requests(self, repetition: int | str, vocab_size: int, max_model_len: int) -> list[Request]:
        """The requests of one repetition, for a model with this vocabulary and context. Different repetitions
        have no prompt in common."""
        lengths = self.lengths(max_model_len)
        draw = random.Random(f"{self.name} {repetition}")
        common = random_ids(draw, max(prefix for prefix, _, _ in lengths), vocab_size)
        return [
            Request(common[:prefix] + random_ids(draw, own, vocab_size), output)
            for prefix, own, output in lengths
        ]

    def lengths(self, max_model_len: int) -> list[tuple[int, int, int]]:
        """The shapes, shrunk to this context."""
        factor = self.factor(max_model_len)
        return [
            (int(prefix * factor), max(1, int(own * factor)), max(1, int(output * factor)))
            for prefix, own, output in self.shapes()
        ]


def random_ids(draw: random.Random, count: int, vocab_size: int) -> list[int]:
    """Returns token ids that are none of the special tokens of many vocabularies."""
    return [draw.randrange(min(_FIRST_ID, vocab_size - 1), vocab_size) for _ in range(count)]


def _ragged() -> list[tuple[int, int, int]]:
    lengths = random.Random(3)
    return [(0, lengths.randint(16, 512), lengths.randint(16, 256)) for _ in range(64)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("single", "1 request, 128 + 128 tokens", lambda: [(0, 128, 128)]),
        Workload("batch", "32 at once, 128 + 128 tokens each", lambda: [(0, 128, 128)] * 32),
        Workload("ragged", "64 at once, 16..512 + 16..256 tokens", _ragged),
        Workload("prefix", "32 at once, 512 common and 32 own + 32 tokens", lambda: [(512, 32, 32)] * 32),
        Workload("long", "1 request, 2048 + 64 tokens", lambda: [(0, 2048, 64)]),
    )
}

SHORT = {f"W{number}": name for number, name in enumerate(WORKLOADS, 1)}
"""What they are called in tables."""

CROWD = Workload("crowd", "256 at once, 128 + 128 tokens each", lambda: [(0, 128, 128)] * 256)
FEW = Workload("few", "8 at once, 128 + 128 tokens each", lambda: [(0, 128, 128)] * 8)
FIRST = Workload("first", "1 request, 128 + 1 tokens", lambda: [(0, 128, 1)])
HEAVY = Workload("heavy", "768 at once, 64 + 256 tokens each", lambda: [(0, 64, 256)] * 768)
ALL = WORKLOADS | {each.name: each for each in (CROWD, FEW, FIRST, HEAVY)}
"""With what takes a GPU, a light load, one first token, and more than a frontend of one core can send."""
