"""The sampler with compiled functions against the one without: the same tokens, whatever the rows want."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.sampling.api import sampling_kernels
from pagewire.v1 import generation_pb2
from tests.worker.sampling.test_sampler import add, cases, logits_for, many_cases
from tests.worker.sampling_reference import Case
from worker.sampling.logprobs.messages import LogprobRequests
from worker.sampling.logprobs.scores import SampledScores
from worker.sampling.sampler import Sampler
from worker.step.beams import NO_TOKEN

CPU = torch.device("cpu")
KERNELS = sampling_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="llvmlite is not installed")


def both(max_num_rows: int, vocab_size: int) -> tuple[Sampler, Sampler]:
    """Compiled, and torch."""
    return Sampler(max_num_rows, vocab_size, CPU, KERNELS), Sampler(max_num_rows, vocab_size, CPU)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=1, max_size=8), st.integers(0, 10**6))
def test_mixed_batches(batch: list[Case], seed: int) -> None:
    """Any combination of parameters, for several steps, with histories."""
    samplers = both(len(batch), 40)
    for sampler in samplers:
        for row, case in enumerate(batch):
            add(sampler, row, case)
    rows = list(range(len(batch)))
    for step in range(4):
        logits = logits_for(len(batch), seed + step)
        compiled, torchs = (sampler.sample(logits.clone(), rows).tolist() for sampler in samplers)
        assert compiled == torchs


@pytest.mark.parametrize("vocab_size", [1024, 33_333])
def test_large_vocabularies_on_two_threads(vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are added, forked and removed on the way."""
    samplers = both(16, vocab_size)
    for sampler in samplers:
        for row, case in enumerate(many_cases(14, vocab_size)):
            add(sampler, row, case)
        sampler.fork_row(14, 3, 7)
        sampler.fork_row(15, 5, 8)
        sampler.remove_row(0)
    rows = list(range(15, 0, -1))
    for step in range(4):
        logits = logits_for(15, step, vocab_size)
        compiled, torchs = (sampler.sample(logits.clone(), rows).tolist() for sampler in samplers)
        assert compiled == torchs


def test_alone_and_in_a_crowd() -> None:
    """A token is its row's affair."""
    cases, logits = many_cases(14, 1031), logits_for(14, 4, 1031)
    together, _ = both(14, 1031)
    for row, case in enumerate(cases):
        add(together, row, case)
    expected = together.sample(logits.clone(), list(range(14))).tolist()
    for row, case in enumerate(cases):
        alone, _ = both(1, 1031)
        add(alone, 0, case)
        assert alone.sample(logits[row : row + 1].clone(), [0]).tolist() == [expected[row]]


def test_what_the_kernel_does_not_know() -> None:
    """See tests/kernels/cpu/sampling/test_chooser.py; torch chooses, from logits that were penalized once."""
    sampling = {"temperature": 1.0, "top_p": 1 - 2**-24, "presence_penalty": 0.5, "seed": 3}
    logits = torch.full((1, 20_000), -26.0)
    logits[0, 123] = 0.5
    samplers = both(1, 20_000)
    for sampler in samplers:
        add(sampler, 0, Case(sampling=sampling, output=[123]))
    compiled, torchs = (sampler.sample(logits.clone(), [0]).tolist() for sampler in samplers)
    assert compiled == torchs


def test_scores_see_the_logits_before_they_change() -> None:
    """Where log-probabilities are requested, rows are processed in pieces, as by torch."""
    requests = LogprobRequests(64)
    cases = many_cases(7, 64)
    samplers = both(7, 64)
    for row, case in enumerate(cases):
        for sampler in samplers:
            add(sampler, row, case)
        new = case.new_row(row)
        new.logprobs.CopyFrom(generation_pb2.LogprobOptions(top_n=3))
        requests.add_row(row, new, case.prompt, case.output)
    columns = []
    for sampler in samplers:
        scores = SampledScores(requests.sampled)
        sampler.sample(logits_for(7, 2, 64), list(range(7)), scores)
        columns.append(scores.columns())
    assert columns[0] is not None and columns[0] == columns[1]


def test_broken_logits() -> None:
    """No token for the row, and the others are as they were."""
    sampler, _ = both(2, 64)
    add(sampler, 0, Case(sampling={"temperature": 1.0, "top_p": 0.5, "typical_p": 0.5}))
    add(sampler, 1, Case(sampling={"temperature": 0.0}))
    logits = logits_for(2, 4, 64)
    best = int(logits[1].argmax())
    logits[0, 20] = torch.nan
    assert sampler.sample(logits, [0, 1]).tolist() == [NO_TOKEN, best]
