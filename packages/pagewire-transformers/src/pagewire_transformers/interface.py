"""The two functions that `transformers` calls in place of its own attention and its own masks.

Both are registered once per process and keep nothing: each attention layer of a model has a `Router` in its
attribute `pagewire_router`, which attends, or looks at what would be attended to.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

SERVING, PROBING = "pagewire", "pagewire_probe"
"""Names of the attention: without masks, and with those of window_mask()."""
OTHER = -1.0
"""What window_mask() gives for a mask that is neither causal nor a window."""


class Router(Protocol):
    """Attends for all layers of one model."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """query: [1, H, T, D], rotated. key: [1, K, T, D], rotated. value: [1, K, T, Dv]. Returns [1, T, H,
        Dv]."""
        ...


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers' AttentionInterface."""
    router: Router = module.pagewire_router
    return router.attend(module, query, key, value, attention_mask, options), None


def window_mask(
    mask_function: Callable[..., torch.Tensor],
    local_size: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> torch.Tensor:
    """A mask function of transformers' AttentionMaskInterface. Returns [1, 1, 1, 1] float32: how many tokens
    a query sees, itself included; 0: all before it; OTHER: not said in such a way.

    mask_function: of transformers, from the positions of queries and keys. It is asked around the borders
    that a window, or a chunk, of local_size tokens has.
    """
    size = local_size or 4
    queries = [0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1]
    query = torch.tensor(queries, device=device)[:, None]
    key = torch.arange(2 * size + 3, device=device)[None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    causal, told = key <= query, OTHER
    try:
        seen = mask_function(zero, zero, query, key)
    except IndexError:  # a mask of these tokens alone, such as one of several sequences
        return torch.full((1, 1, 1, 1), told, device=device)
    if torch.equal(seen, causal):
        told = 0.0
    elif local_size is not None and torch.equal(seen, causal & (key > query - local_size)):
        told = float(local_size)
    return torch.full((1, 1, 1, 1), told, device=device)


def register() -> None:
    """Makes the functions known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name in (SERVING, PROBING):
        AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(PROBING, window_mask)
