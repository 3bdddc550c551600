"""Decoding steps as captured graphs: some three hundred launches of a step become one.

A graph repeats launches, with their sizes and addresses, on what the buffers hold by then. So one is captured
for each of a few numbers of rows, and a step is padded to the next of them with rows that compute token 0,
store nothing and see nothing (kernels.triton.step.prepare_inputs). Steps with prompts in them are of any
size: they are launched one kernel at a time, where there is enough in each to hide the launch of the next.
"""

from bisect import bisect_left

import torch

from worker.cuda.device import Run
from worker.cuda.step_buffers import StepShape

LARGEST = 512
"""Rows. A step of more is long enough to hide its launches."""


def graph_sizes(most: int) -> tuple[int, ...]:
    """Numbers of rows to capture, ascending, up to `most` or LARGEST.

    Padding computes rows for nothing: at most seven, or fifteen above 256, where another row costs next to
    nothing as long as weights are what is read.
    """
    most = min(most, LARGEST)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)]
    return (*(size for size in sizes if size < most), most)


class DecodeGraphs:
    """The graphs of one model. Empty until something is captured."""

    def __init__(self) -> None:
        self._graphs: dict[int, Run] = {}
        self._sizes: list[int] = []

    def add(self, size: int, graph: Run) -> None:
        """A step of so many rows."""
        self._graphs[size] = graph
        self._sizes = sorted(self._graphs)

    def run(self, shape: StepShape) -> torch.Tensor | None:
        """The hidden states of a step, with those of padding behind them; None: there is no graph for it."""
        at = bisect_left(self._sizes, shape.rows)
        if shape.decode_rows != shape.rows or at == len(self._sizes):
            return None
        return self._graphs[self._sizes[at]]()
