"""What every operation that works row by row must keep: a row's result is that of the row alone."""

from collections.abc import Callable

import torch

Rows = torch.Tensor | tuple[torch.Tensor, ...]


def assert_rows_are_independent(function: Callable[..., Rows], *inputs: torch.Tensor) -> None:
    """Compares a call with all rows to calls with one row, some rows, and rows in another order, bit for bit.

    function takes the inputs, whose first dimension counts rows, and returns one or more tensors of rows.
    """
    together = as_tuple(function(*(x.clone() for x in inputs)))
    count = len(inputs[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(7))
    picks = [torch.tensor([row]) for row in range(count)] + [order, order[: count // 2]]
    for pick in picks:
        alone = as_tuple(function(*(x[pick].clone() for x in inputs)))
        for ours, theirs in zip(alone, together, strict=True):
            torch.testing.assert_close(ours, theirs[pick], rtol=0, atol=0, equal_nan=True)


def in_place(function: Callable[..., None]) -> Callable[..., torch.Tensor]:
    """Turns an operation that changes its first argument into one that returns it."""

    def call(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        function(x, *others)
        return x

    return call


def as_tuple(result: Rows) -> tuple[torch.Tensor, ...]:
    """One result as a tuple of one."""
    return result if isinstance(result, tuple) else (result,)
