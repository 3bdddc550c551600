"""Which exchanges of ranks a program can have; tests/worker/cpu/test_ranks.py runs them."""

import pytest
import torch

from kernels.cpu.attention.block_attention import block_kernels
from kernels.cpu.program.program import CannotRecord
from kernels.cpu.program.recording import RecordingOps
from kernels.cpu_ops import CpuOps
from tests.worker.ranks import SilentRank

pytestmark = pytest.mark.cpu_kernels


def test_ranks_that_share_no_memory():
    blocks = block_kernels(torch.bfloat16, 16, 32, group=1)
    assert blocks is not None
    ops = RecordingOps(CpuOps(torch.bfloat16), blocks, 2)
    partial = ops.buffers.lasting((2, 32), torch.float32)
    with pytest.raises(CannotRecord, match="exchange by calls of Python"):
        ops.add_partials(partial, None, torch.bfloat16, SilentRank(0, 2))
