"""Decoding steps as captured graphs: some three hundred launches of a step become one.

A graph repeats launches with the same sizes and addresses, on the current contents of the buffers. So one is
captured for each of a few numbers of rows, and a step is padded to the next of them with rows that compute
token 0, store nothing and attend to nothing (kernels.triton.step.prepare_inputs). Rows that verify drafts
compute several tokens each: their step takes the graph of as many rows as it has tokens, of which some stay
empty. Steps with prompts have any
size: they are launched kernel by kernel, and each kernel runs long enough to hide the launch of the next.
"""

from bisect import bisect_left

import torch

from worker.cuda.device.device import Run
from worker.cuda.step_buffers import StepShape

LARGEST = 512
"""Rows of the largest graph. A step of more rows is long enough to hide its launches."""


def graph_sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of rows to capture, ascending, up to `most` or LARGEST.

    Padding adds at most seven rows, or fifteen above 256, where another row costs next to nothing as long as
    reading the weights dominates.
    """
    most = min(most, LARGEST)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)]
    return (*(size for size in sizes if size < most), most)


class DecodeGraphs:
    """The captured graphs of one model, by number of rows."""

    def __init__(self) -> None:
        self._graphs: dict[int, Run] = {}
        self._sizes: list[int] = []

    def add(self, size: int, graph: Run) -> None:
        """Adds the graph of steps of `size` rows."""
        self._graphs[size] = graph
        self._sizes = sorted(self._graphs)

    def run(self, shape: StepShape) -> torch.Tensor | None:
        """Runs the graph of a step and returns its hidden states, followed by those of padding; None: there
        is no graph for the step."""
        at = bisect_left(self._sizes, shape.tokens)
        if shape.decode_rows != shape.rows or at == len(self._sizes):
            return None
        return self._graphs[self._sizes[at]]()
