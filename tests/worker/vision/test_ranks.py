"""An encoder of images on several tensor-parallel ranks: each computes all of it, with the bits of one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.worker.cpu.test_ranks import SIZES, TURN, InTurns
from tests.worker.ranks import load_rank, on_ranks
from tests.worker.vision.images import make_image
from worker.cpu.kernel_selection import use_cpu_kernels
from worker.cpu.rank_checks import check_ranks
from worker.families.registry import read_model_config
from worker.parallel import ParallelGroup

CPU = torch.device("cpu")


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(
    ("family", "quantization"), [("llava", ""), ("llava", "int8"), ("mistral3", ""), ("gemma4", "")]
)
def test_ranks_have_the_vectors_of_one(
    family: str, quantization: str, vision_model: Callable[..., Path], short_leaves: None
):
    folder = vision_model(family, text=SIZES)
    image = torch.from_numpy(make_image(family))
    check_ranks(read_model_config(folder), 2, quantization)

    def work(group: ParallelGroup) -> bytes:
        with TURN, torch.inference_mode():
            model = load_rank(folder, group, "bfloat16", quantization=quantization)
            chosen = CPU, 16, None, None, lambda *_: None
            use_cpu_kernels(model, torch.bfloat16, *chosen, quantization=quantization)
            assert model.vision is not None
            return model.vision(image).float().numpy().tobytes()

    (expected,) = on_ranks(1, work, InTurns)
    assert on_ranks(2, work, InTurns) == [expected] * 2
