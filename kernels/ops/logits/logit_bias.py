"""Adds given numbers to the logits of given tokens, in float32.

logits [A, V] float32, changed in place; of A rows, U have a bias for N tokens each.

On CUDA: kernels.triton.sampling.adjust_logits.
"""

import torch


def add_logit_bias_reference(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The formula, one token at a time. Returns new logits."""
    result = logits.clone()
    for u, a in enumerate(batch_index.tolist()):
        for n, token in enumerate(token_ids[u].tolist()):
            result[a, token] = logits[a, token] + bias[u, n]
    return result


def add_logit_bias(
    logits: torch.Tensor, batch_index: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> None:
    """batch_index [U] int64, token_ids [U, N] int64, bias [U, N] float32.

    A token that is given more than once must have the same bias each time; it is added once. (So a
    shorter list is padded by repeating its first entry.)
    """
    flat = logits.view(-1)
    index = batch_index[:, None] * logits.shape[-1] + token_ids
    flat.scatter_(0, index.view(-1), (flat[index] + bias).view(-1))
