"""What layers may do with buffers while a program is recorded."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from kernels.cpu.attention.block_attention import block_kernels
from kernels.cpu.program.program import CannotRecord
from kernels.cpu.program.recording import RecordingOps
from kernels.cpu_ops import CpuOps
from kernels.torch_ops import Ops

pytestmark = pytest.mark.cpu_kernels
MOST, WIDTH = 2, 32


class Model:
    """A model without layers."""

    def __init__(self) -> None:
        self.ops = Ops()

    def compute_by(self, ops: Ops) -> None:
        self.ops = ops


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def ops() -> RecordingOps:
    blocks = block_kernels(torch.bfloat16, 16, 32, group=1)
    assert blocks is not None
    return RecordingOps(CpuOps(torch.bfloat16), blocks, MOST)


def assign(x: torch.Tensor) -> None:
    x[0] = 1


def add_to(x: torch.Tensor) -> None:
    x += 1


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2,
        lambda x: x.float(),
        lambda x: x[:, ::2].contiguous(),
        lambda x: torch.cat((x, x)),
        lambda x: F.gelu(x),
        lambda x: x.add_(1),
        assign,
        add_to,
        lambda x: torch.add(input=x, other=x),
        lambda x: x.tolist(),
        lambda x: x.max().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.flatten().contiguous(),
    ],
)
def test_torch_does_not_compute_with_buffers(compute: Callable[[torch.Tensor], object], ops: RecordingOps):
    """It would, once, with what is not there yet."""
    x = ops.buffers.lasting((MOST, WIDTH), torch.bfloat16)
    with pytest.raises(CannotRecord, match="torch computes"), ops.recording(Model(), checks=True):
        compute(x[:, : WIDTH // 2])


def test_views_and_what_is_no_buffer(ops: RecordingOps):
    x, weight = ops.buffers.lasting((MOST, WIDTH), torch.bfloat16), torch.ones(WIDTH)
    model = Model()
    eager = model.ops
    with ops.recording(model, checks=True):
        assert model.ops is ops
        parts = x.view(MOST, 2, -1).transpose(0, 1)[1].split_with_sizes((8, 8), dim=1)
        assert all(part in ops.buffers for part in parts) and x.contiguous() is x
        assert (weight * 2).sum() == 2 * WIDTH
    assert model.ops is eager


def test_outputs_of_a_layer_are_used_again_some_layers_later(ops: RecordingOps):
    """Those of the residual stream, and what lasts, are not."""
    x = ops.buffers.lasting((MOST, WIDTH), torch.bfloat16)
    normed, sums = [], []
    for _ in range(2 * ops.buffers.num_sets):
        with ops.layer():
            first, total = ops.add_rms_norm(x, x, torch.ones(WIDTH, dtype=torch.bfloat16), 1e-5)
            normed.append(first.data_ptr())
            sums.append(total.data_ptr())
    assert len(set(normed)) == ops.buffers.num_sets and normed[0] == normed[ops.buffers.num_sets]
    assert set(sums) == {x.data_ptr()}
