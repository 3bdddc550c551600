"""Values in place of token ids, in a program."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.plan import LayerCache
from kernels.batch import InputBatch, InputEmbeddings
from tests.worker.fakes import Driver
from worker.cpu.fused_decoder.decoder import FusedDecoder

pytestmark = pytest.mark.cpu_kernels


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_tokens(
    family: str, tied: bool, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """Every step of a sequence with the values of its tokens, from an embedding that is packed and from one
    that is not, with and without a factor."""
    folder = checkpoint(family, head_dim=32, tie_word_embeddings=tied)

    def logits() -> torch.Tensor:
        driver = Driver(folder, dtype="bfloat16", block_size=16, num_blocks=200, max_num_seqs=8)
        sequence = driver.add([3 + i for i in range(30)], 6)[0]
        driver.run()
        return torch.stack(sequence.logits)

    expected, forward = logits(), FusedDecoder.forward

    def with_values(model: FusedDecoder, batch: InputBatch, caches: list[LayerCache]) -> torch.Tensor:
        tokens = torch.arange(len(batch.token_ids))
        values = InputEmbeddings(tokens, model.model.embed(batch))
        without_ids = replace(batch, token_ids=batch.token_ids * 0, input_embeddings=values)
        return forward(model, without_ids, caches)

    monkeypatch.setattr(FusedDecoder, "forward", with_values)
    assert torch.equal(logits(), expected)
