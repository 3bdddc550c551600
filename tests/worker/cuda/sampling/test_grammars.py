"""Rows with grammars on a device: the same tokens as on the CPU, with masks uploaded before each choice."""

import pytest
import torch

from frontend.grammar.judge import byte_tokenizer
from tests.worker.sampling_reference import Case
from worker.cuda.sampling.sampler import CudaSampler
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.rows import GrammarRows
from worker.sampling.sampler import Sampler as CpuSampler
from worker.step.beams import NO_TOKEN

V = 257
EOS = 256
ROWS = [0, 2, 3, 5]
GRAMMARS = {0: "start: /[a-d]{2,20}/", 2: 'start: "xyz"', 3: "", 5: "start: <|nosuch|>"}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer([]), "llguidance test")


def test_tokens_equal_those_of_the_cpu(device: torch.device, compiler: GrammarCompiler) -> None:
    """Greedy and drawn rows, one without a grammar, one whose grammar fails, a fork and a resumed row."""
    cuda = CudaSampler(6, V, device, GrammarRows(V, compiler))
    cpu = CpuSampler(6, V, torch.device("cpu"), None, GrammarRows(V, compiler))
    for row in ROWS:
        temperature = 0.0 if row == 2 else 1.3
        case = Case(sampling={"temperature": temperature, "seed": row, "repetition_penalty": 1.2})
        new = case.new_row(row)
        new.grammar = GRAMMARS[row]
        for sampler in (cuda, cpu):
            sampler.add_row(row, new, [1, 2], [ord("x")] if row == 2 else [])
    rows = list(ROWS)
    for step in range(4):
        if step == 2:
            for sampler in (cuda, cpu):
                sampler.fork_row(1, 0, 1)
            rows = [0, 1, *ROWS[1:]]
        logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(step)) * 3
        tokens = cuda.sample(logits.clone().to(device), rows).tolist()
        cuda.grammars.record(rows, lambda known=tokens: known)  # type: ignore[misc]
        assert tokens == cpu.sample(logits.clone(), rows).tolist()
        assert tokens[-1] == NO_TOKEN and chr(tokens[0]) in "abcd"
        assert tokens[rows.index(2)] == [ord("y"), ord("z"), EOS, EOS][step]
    assert list(cuda.grammars.errors(rows)) == [rows.index(5)]
