"""Which tokens of a step belong to which row, on the device. Does not import triton."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DeviceSpans:
    """R rows of a step, with padding, at addresses that captured graphs keep; see kernels.ops.delta.spans. No
    token is drafted. All are int32. Tokens of padding belong to no row: what layers make of them are zeros.
    """

    rows: torch.Tensor  # [R]
    starts: torch.Tensor  # [R] position of the first token; 0: the row's state begins with zeros
    num_rows: torch.Tensor  # [1] rows from there on are padding
    firsts: torch.Tensor  # [R + 1] index of each row's first token in the step; the number of tokens
    saves: torch.Tensor  # [4, R], rows may be strided: kernels.ops.delta.spans.Saves of each row

    def __len__(self) -> int:
        """R."""
        return len(self.rows)
