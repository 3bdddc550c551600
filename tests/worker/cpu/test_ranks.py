"""Compiled kernels on several ranks: the bits of one rank, in every form of weights."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pagewire.errors import StartupError
from tests.worker.ranks import (
    LEAVES,
    SilentRank,
    ThreadGroup,
    attend_head_by_head,
    load_rank,
    on_ranks,
    run_model,
)
from worker.cpu.kernel_selection import use_cpu_kernels
from worker.families.registry import read_model_config
from worker.layers.linear import RowLinear
from worker.parallel import ParallelGroup

pytestmark = pytest.mark.cpu_kernels
CPU = torch.device("cpu")
SIZES = {"num_attention_heads": 8, "head_dim": 128, "num_key_value_heads": 2, "intermediate_size": 1024}
"""Of which products behind attention and in MLPs are the sums of four leaves."""
CASES = [
    ("llama", "float32", ""),
    ("llama", "bfloat16", ""),
    ("llama", "bfloat16", "int8"),
    ("llama", "bfloat16", "int4"),
    ("gpt2", "bfloat16", ""),
    ("gpt2", "bfloat16", "int8"),
    ("mixtral", "bfloat16", ""),
    ("mixtral", "bfloat16", "int8"),
]
TURN = threading.Lock()
"""Kernels have one team of threads in a process."""


class InTurns(ThreadGroup):
    """A rank that computes while no other one does."""

    def gather(self, part: torch.Tensor) -> Sequence[torch.Tensor]:
        TURN.release()
        try:
            return super().gather(part)
        finally:
            TURN.acquire()


@pytest.mark.parametrize(("family", "dtype", "quantization"), CASES)
def test_ranks_have_the_bits_of_one(
    family: str,
    dtype: str,
    quantization: str,
    checkpoint: Callable[..., Path],
    short_leaves: None,
    monkeypatch: pytest.MonkeyPatch,
):
    attend_head_by_head(monkeypatch)
    folder = checkpoint(family, **({"n_embd": 1024, "n_head": 8} if family == "gpt2" else SIZES))
    vocab_size = read_model_config(folder).vocab_size

    def work(group: ParallelGroup) -> bytes:
        with TURN:
            model = load_rank(folder, group, dtype, quantization=quantization)
            kind = getattr(torch, dtype)
            use_cpu_kernels(model, kind, CPU, 16, None, None, lambda *_: None, quantization=quantization)
            rows = [layer for layer in model.modules() if isinstance(layer, RowLinear)]
            leaves = {1} if quantization == "int8" else {LEAVES // group.size, 8 // group.size}
            assert {1 << row.packed.depth for row in rows if row.packed} <= leaves
            logits = run_model(model, vocab_size, steps=2)
        return torch.cat([each.float() for each in logits]).numpy().tobytes()

    (expected,) = on_ranks(1, work, InTurns)
    for size in (2, 4):
        assert on_ranks(size, work, InTurns) == [expected] * size, size


def test_a_sum_of_too_few_leaves_is_refused(checkpoint: Callable[..., Path]):
    """By the layer's name, before any matrix is packed; integers of 8 bits have no leaves."""
    folder = checkpoint("llama", num_attention_heads=4, head_dim=512, intermediate_size=1000)

    def pack(group: ParallelGroup, quantization: str) -> None:
        model = load_rank(folder, group, "bfloat16", quantization=quantization)
        use_cpu_kernels(
            model, torch.bfloat16, CPU, 16, None, None, lambda *_: None, quantization=quantization
        )

    expected = r"blocks\.0\.mlp\.down, with 1000 inputs, is a sum of 1 leaf, .* among 2 ranks"
    for quantization in ("", "int4"):
        with pytest.raises(StartupError, match=expected):
            pack(SilentRank(0, 2), quantization)
    with pytest.raises(StartupError, match="2 leaves, which cannot be divided among 4 ranks"):
        pack(SilentRank(0, 4), "")
    pack(SilentRank(1, 4), "int8")
