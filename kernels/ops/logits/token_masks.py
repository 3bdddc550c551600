"""Masks over the vocabulary: a masked token has the logit -inf and can never be chosen.

logits [A, V] float32, changed in place; of A rows, U are masked by N token ids each. What is read
and written: U * N entries; and up to A * V to see what a prohibition leaves.
"""

import torch

FEW = 1024
"""Tokens that are looked at first on a CPU: where one of them is left, the others need not be read, which
would take 2 ms for 32 rows of 152,000."""


def allow_tokens_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """The formula, row by row. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        for token in set(range(logits.shape[-1])) - set(token_ids[u].tolist()):
            result[a, token] = -torch.inf
    return result


def allow_tokens(logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Masks all but the given tokens. batch_index [U] int64, distinct; token_ids [U, N] int64."""
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + token_ids
    allowed = flat[index]
    logits.index_fill_(0, batch_index, -torch.inf)
    flat.scatter_(0, index.view(-1), allowed.view(-1))


def forbid_tokens_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, active: torch.Tensor
) -> torch.Tensor:
    """The formula, row by row. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        masked = logits[a].clone()
        masked[token_ids[u][active[u]]] = -torch.inf
        if masked.max() > -torch.inf:
            result[a] = masked
    return result


def forbid_tokens(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, active: torch.Tensor
) -> None:
    """Masks the given tokens where active; but a row that would have no token left is unchanged.

    batch_index [U] int64, distinct; token_ids [U, N] int64, repeats allowed; active [U, N] bool. A
    token that occurs both active and inactive is masked.
    """
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + token_ids
    before = flat[index]
    # The minimum, not a plain write: it does not depend on which of two equal ids comes last.
    mask = torch.where(active, -torch.inf, torch.inf).to(logits.dtype)
    flat.scatter_reduce_(0, index.view(-1), mask.view(-1), "amin")
    left = _has_any(logits, batch_index)
    flat.scatter_(0, index.view(-1), torch.where(left[:, None], flat[index], before).view(-1))


def _has_any(logits: torch.Tensor, batch_index: torch.Tensor) -> torch.Tensor:
    """[U] bool: whether the row has a token that is not masked."""
    some = logits[:, :FEW].amax(-1)[batch_index] > -torch.inf
    if logits.device.type == "cpu" and bool(some.all()):
        return some
    return logits.amax(-1)[batch_index] > -torch.inf
