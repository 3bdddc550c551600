"""Steps as captured graphs: some three hundred launches of a step become one.

A graph repeats launches with the same sizes and addresses, on the current contents of the buffers. So one is
captured for each of some numbers of tokens, up to that of the largest step, with room for as many rows as
there may be, and a step is padded to the next of them with rows that compute token 0, store nothing and
attend to nothing (kernels.triton.step.prepare_inputs). What rows compute, one token, drafts or a piece of a
prompt, is on the device alone: sizes of attention's launches follow from the numbers of tokens and rows
(kernels.triton.attention.work_list). So a step costs the host the same, whatever its size.

What follows the hidden states is a second graph, of the number of rows that sample: logits, the choice of
tokens, and their appending to rows. There is one for rows that are greedy, one for rows that draw, and one
for rows that filter, too; what else rows may ask for is launched kernel by kernel.
"""

from bisect import bisect_left

from worker.cuda.device import Run
from worker.cuda.sampling.row_parameters import ALIGNMENT

TILE = 128
"""Tokens of a product of many: padding to a multiple of them adds no program to a product."""


def graph_sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of tokens to capture, ascending, up to `most`.

    Padding adds at most seven tokens, fifteen above 256, and less than a tile above 512: products round up to
    tiles of 16 tokens or more in any case. Above 2048 there are eight sizes up to the double: padding adds at
    most an eighth, and nothing to the steps that a full budget of tokens makes, the most frequent ones.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(TILE, (1 << sizes[-1].bit_length()) // 16))
    return (*(size for size in sizes if size < most), most)


def sampling_sizes(most: int) -> tuple[int, ...]:
    """Returns the numbers of rows to capture sampling for, ascending, up to `most` or the next multiple of
    ALIGNMENT, as all of them are. Padding adds at most 31 rows, or an eighth, whose logits are read."""
    sizes, last = [ALIGNMENT, 2 * ALIGNMENT, 16, 32, 48, 64], most + -most % ALIGNMENT
    while sizes[-1] < last:
        sizes.append(sizes[-1] + max(32, (1 << sizes[-1].bit_length()) // 16))
    return (*(size for size in sizes if size < last), last)


class Graphs:
    """Captured graphs by size: of a step's tokens, or of the rows that sample."""

    def __init__(self) -> None:
        self._graphs: dict[int, Run] = {}
        self._sizes: list[int] = []

    def add(self, size: int, graph: Run) -> None:
        """Adds the graph of up to `size`."""
        self._graphs[size] = graph
        self._sizes = sorted(self._graphs)

    def find(self, size: int) -> Run | None:
        """Returns the least graph that has room; its result is followed by that of padding. None: there is
        none."""
        at = bisect_left(self._sizes, size)
        return None if at == len(self._sizes) else self._graphs[self._sizes[at]]
