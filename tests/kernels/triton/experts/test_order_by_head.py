"""The order of heads in place of experts, and the tiles of each."""

import pytest
import torch

from kernels.triton.experts import dispatch as kernels
from kernels.triton.experts.dispatch import order_by_head


@pytest.mark.parametrize(("tokens", "heads"), [(0, 3), (1, 1), (1, 3), (5, 2), (40, 3)])
def test_every_token_has_all_heads(
    tokens: int, heads: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    """Pairs stand head by head, those of a head by token; in several programs of a head."""
    monkeypatch.setattr(kernels, "BLOCK", 16)
    order = order_by_head(tokens, heads, torch.float32, device)
    assert order.owners.tolist() == [head for head in range(heads) for _ in range(tokens)]
    assert order.tokens.tolist() == [token * heads + head for head in range(heads) for token in range(tokens)]
    if tokens:
        assert order.starts.tolist() == [tokens * head for head in range(heads + 1)]
    tiles = [(head, tokens * head + first) for head in range(heads) for first in range(0, tokens, order.tile)]
    assert list(zip(order.tile_experts.tolist(), order.tile_firsts.tolist(), strict=True)) == tiles
