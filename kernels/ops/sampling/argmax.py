"""Greedy choice: the id of the largest logit, the lowest id among equals; -1 where there is none.

logits [A, V] float32 -> [A] int64. One read of the logits.

"None" is a row whose largest logit is not finite: NaN or +inf somewhere (the model broke down), or
-inf everywhere (nothing may be chosen). The caller must not take -1 for a token.
"""

import math

import torch

from kernels.triton.requirements import uses_triton


def argmax_reference(logits: torch.Tensor) -> torch.Tensor:
    """The formula: a loop over ids."""
    tokens = []
    for row in logits.tolist():
        best = -1
        for token, logit in enumerate(row):
            if math.isnan(logit) or logit == math.inf:
                best = -1
                break
            if logit > (row[best] if best >= 0 else -math.inf):
                best = token
        tokens.append(best)
    return torch.tensor(tokens, device=logits.device)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """torch.max gives the first of equals, and NaN if there is one. Dispatches on the device."""
    if uses_triton(logits):
        from kernels.triton.sampling import sample as gpu

        return gpu.argmax(logits)
    largest, tokens = logits.max(-1)
    return torch.where(largest.isfinite(), tokens, -1)
