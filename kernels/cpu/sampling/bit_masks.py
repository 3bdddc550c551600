"""kernels.ops.logits.bitmask with the compiled function (kernels.cpu.sampling.mask_rows).

Milliseconds of one core for 32 rows of 152,000 logits, and by torch: in a string (98 % of the tokens
allowed) 1.2 (8.9), where hardly a token fits 1.3 (8.9), where every other one does 2.6 (30).
"""

from array import array
from collections.abc import Sequence

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.records import BitmaskRecord


class BitMasks:
    """The compiled function, with threads."""

    def __init__(self, kernels: SamplingKernels, vocab_size: int) -> None:
        self._kernels, self._vocab_size = kernels, vocab_size

    def apply(self, logits: torch.Tensor, users: Sequence[int], masks: Sequence[int]) -> None:
        """Masks rows [U] of logits [A, V] in place. users: their distinct indexes; masks: the address of the
        words of each, [ceil(V / 32)] int32."""
        assert logits.is_contiguous() and logits.dtype == torch.float32
        assert logits.shape[1] == self._vocab_size and len(users) == len(masks)
        lines = array("q", [*users, *masks])
        at, _ = lines.buffer_info()
        record = BitmaskRecord(
            logits=logits.data_ptr(), vocab_size=self._vocab_size, batch_index=at, masks=at + 8 * len(users)
        )
        threads = self._kernels.threads
        values = len(users) * self._vocab_size
        threads.run(self._kernels.mask_rows, record, len(users), values, [0] * threads.count)
