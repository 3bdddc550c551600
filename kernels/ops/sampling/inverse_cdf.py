"""One draw from each row of weights: the first index whose cumulative weight exceeds u times the whole.

    c_i = w_0 + ... + w_i  (float64, added from left to right),   result = min { i : c_i > u * c_{W-1} }

weights [A, W] float64, u [A] float64 in [0, 1) -> [A] int64.

Index i is drawn only if c_{i-1} <= u c_{W-1} < c_i, so its weight is not zero. As u is at most
1 - 2^-53, the product stays below c_{W-1} after rounding too, unless the sum is subnormal; the last
index with a positive weight is the limit in any case. This needs sums that never decrease: torch adds
from left to right on the CPU, as numpy does. Devices with a parallel scan
have a variant of their own: kernels.triton.sampling.sample.

The result is -1 where no weight is positive or one is NaN.
"""

from itertools import accumulate

import torch


def inverse_cdf_reference(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The formula: a linear search from the left."""
    indexes = []
    for row, x in zip(weights.tolist(), u.tolist(), strict=True):
        cdf = list(accumulate(row))
        candidates = [i for i, mass in enumerate(cdf) if mass > x * cdf[-1] or 0 < mass == cdf[-1]]
        indexes.append(candidates[0] if candidates else -1)
    return torch.tensor(indexes, device=weights.device)


def inverse_cdf(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Searches the cumulative sums by bisection."""
    cdf = weights.cumsum(-1)
    total = cdf[:, -1:].contiguous()
    drawn = torch.searchsorted(cdf, u[:, None] * total, right=True)
    last = torch.searchsorted(cdf, total)
    return torch.where(total > 0, torch.minimum(drawn, last), -1)[:, 0]
