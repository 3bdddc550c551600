"""Steps as captured graphs: some three hundred launches of a step become one.

A graph repeats launches with the same sizes and addresses, on the current contents of the buffers. So one is
captured for each of a few numbers of tokens, with room for as many rows, and a step is padded to the next of
them with rows that compute token 0, store nothing and attend to nothing (kernels.triton.step.prepare_inputs).
What rows compute, one token, drafts or a piece of a prompt, is on the device alone: sizes of attention's
launches follow from the numbers of tokens and rows (kernels.triton.attention.work_list). Larger steps are
launched kernel by kernel: each kernel runs long enough to hide the launch of the next.
"""

from bisect import bisect_left

import torch

from worker.cuda.device.device import Run
from worker.cuda.step_buffers import StepShape

LARGEST = 512
"""Tokens of the largest graph. A step of more tokens is long enough to hide its launches."""


def graph_sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of tokens to capture, ascending, up to `most` or LARGEST.

    Padding adds at most seven tokens, or fifteen above 256: products round up to tiles of 16 tokens or more
    in any case.
    """
    most = min(most, LARGEST)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)]
    return (*(size for size in sizes if size < most), most)


class StepGraphs:
    """The captured graphs of one model, by number of tokens."""

    def __init__(self) -> None:
        self._graphs: dict[int, Run] = {}
        self._sizes: list[int] = []

    def add(self, size: int, graph: Run) -> None:
        """Adds the graph of steps of up to `size` tokens."""
        self._graphs[size] = graph
        self._sizes = sorted(self._graphs)

    def run(self, shape: StepShape) -> torch.Tensor | None:
        """Runs the graph of a step and returns its hidden states, followed by those of padding; None: there
        is no graph for the step."""
        at = bisect_left(self._sizes, shape.tokens)
        if at == len(self._sizes):
            return None
        return self._graphs[self._sizes[at]]()
