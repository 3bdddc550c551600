"""How far a kernel's result may be from its reference in float64, by dtype."""

import torch

# (dtype, absolute, relative): a few units in the last place of the result, and of what is summed.
TOLERANCES = [
    (torch.float32, 2e-6, 2e-6),
    (torch.float16, 2e-3, 2e-3),
    (torch.bfloat16, 1.6e-2, 1.6e-2),
]

DTYPES = [dtype for dtype, _, _ in TOLERANCES]


def random(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Normal values, rounded to the dtype."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def assert_close(result: torch.Tensor, exact: torch.Tensor, absolute: float, relative: float) -> None:
    """exact: float64."""
    torch.testing.assert_close(result.double(), exact, atol=absolute, rtol=relative)
