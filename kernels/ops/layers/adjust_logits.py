"""What some families do with logits before anything else: a factor, and a soft cap.

    y = x * scale                                     without a cap
    y = cap * tanh(x * scale / cap)                   with one

logits: [A, V] float32. A row's result depends on that row alone. Bytes moved: reads and writes 4 * V per row.
The variant for a CPU is kernels.cpu.elementwise.scaling.
"""

import torch


def adjust_logits(logits: torch.Tensor, scale: float, cap: float | None) -> torch.Tensor:
    """[A, V] -> [A, V], a new tensor. scale, cap: above 0; cap None: there is none."""
    scaled = logits * scale
    return scaled if cap is None else torch.tanh(scaled / cap) * cap
