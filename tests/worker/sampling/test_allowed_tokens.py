"""A grammar in the sampler: what it allows is what allowed_token_ids would, at each position."""

import numpy as np
import pytest
import torch

from frontend.grammar.judge import byte_tokenizer
from kernels.cpu.sampling.api import SamplingKernels, sampling_kernels
from tests.worker.sampling_reference import Case
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.rows import GrammarRows
from worker.sampling.sampler import Sampler

V, EOS = 257, 256
CPU = torch.device("cpu")


@pytest.mark.parametrize("kernels", [None, sampling_kernels()], ids=["torch", "kernels"])
@pytest.mark.parametrize("temperature", [0.0, 1.4])
@pytest.mark.parametrize("bad", [[], list(b"abc")])
def test_equals_allowed_token_ids(
    temperature: float, bad: list[int], kernels: SamplingKernels | None
) -> None:
    """Alone and beside a plain row, by torch and by the compiled functions; prohibitions give way where
    they would leave nothing."""
    compiler = GrammarCompiler(byte_tokenizer([]), "llguidance test")
    sampler = Sampler(2, V, CPU, kernels, GrammarRows(V, compiler))
    masks = GrammarRows(V, compiler)
    sampling = {"temperature": temperature, "seed": 4, "top_p": 0.9, "bad_token_ids": bad}
    stops = {"stop_token_ids": [EOS], "min_tokens": 3}
    case, other = Case(sampling=sampling, **stops), Case(sampling={"temperature": 0.0})
    new = case.new_row(0)
    new.grammar = "start: /[a-c]{1,4}[0-9]?/"
    sampler.add_row(0, new, case.prompt, [])
    masks.add_row(0, new, case.prompt, [])
    sampler.add_row(1, other.new_row(1), other.prompt, [])
    assert sampler.needs_logits(np.array([0, 1]), False) and not sampler.needs_logits(np.array([1]), True)
    output: list[int] = []
    for step in range(7):
        logits = torch.randn(2, V, generator=torch.Generator().manual_seed(step)) * 3
        bits = np.unpackbits(masks.words([0]).view(np.uint8), bitorder="little")
        twin = Sampler(1, V, CPU)
        allowed = np.flatnonzero(bits).tolist()
        limited = Case(sampling={**sampling, "allowed_token_ids": allowed}, **stops)
        twin.add_row(0, limited.new_row(0), case.prompt, output)
        expected = twin.sample(logits[:1].clone(), [0]).tolist()
        tokens = sampler.sample(logits.clone(), [0, 1]).tolist()
        assert tokens == [*expected, int(logits[1].argmax())]
        masks.record([0], lambda known=tokens: known)  # type: ignore[misc]
        output.append(tokens[0])
    assert EOS in output
