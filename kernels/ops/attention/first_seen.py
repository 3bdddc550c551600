"""Where the positions that a query sees begin: full attention, sliding windows, chunks."""

import numpy as np

from kernels.ops.attention.ragged import Integers


def first_seen(positions: Integers, window: int | None, chunked: bool) -> Integers:
    """Returns the first position that the query at each position sees.

    window: tokens that a query sees, itself included; None: all. chunked: it is the chunk of so many
    positions in which the query stands, from its beginning on (Llama 4).
    """
    if window is None:
        return np.zeros_like(positions)
    if chunked:
        return positions // window * window
    return np.maximum(positions - window + 1, 0)
