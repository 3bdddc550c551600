"""Log-probabilities of the CUDA worker against those of the CPU: the same ids and ranks, and values that
differ by the order in which they are added up."""

import numpy as np
import pytest
import torch

from pagewire.internal.v1.engine_pb2 import LogprobColumns
from pagewire.v1.generation_pb2 import LogprobOptions
from pagewire.v1.prompt_pb2 import TokenIds
from tests.logprob_columns import take_apart
from tests.worker.sampling_reference import Case
from worker.cuda.sampling.logprobs import score
from worker.cuda.sampling.sampler import CudaSampler
from worker.sampling.logprobs.messages import LogprobCandidates, LogprobRequests, PromptPart
from worker.sampling.logprobs.scores import PromptScores, SampledScores
from worker.sampling.sampler import Sampler as CpuSampler

V = 300
CPU = torch.device("cpu")
FEW = [
    LogprobOptions(),
    LogprobOptions(top_n=1),
    None,
    LogprobOptions(top_n=40),
    LogprobOptions(token_ids=TokenIds(ids=[7, 3, 299])),
]
"""What rows want that are sampled together; None: nothing."""
MANY = [LogprobOptions(all=True), LogprobOptions(top_n=2), None, LogprobOptions(top_n=200)]


def logits_for(rows: int, ties: bool) -> torch.Tensor:
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(rows)) * 3
    return logits.round() if ties else logits


def assert_alike(found: LogprobColumns | None, right: LogprobColumns | None) -> None:
    assert found is not None and right is not None
    for mine, theirs in zip(take_apart(found), take_apart(right), strict=True):
        assert (mine.rank, mine.ids, mine.ranks) == (theirs.rank, theirs.ids, theirs.ranks)
        assert mine.logprob == pytest.approx(theirs.logprob, abs=2e-6, rel=1e-6)
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("options", [FEW, FEW[:1], FEW[4:], MANY], ids=["few", "own", "named", "many"])
@pytest.mark.parametrize("ties", [False, True])
def test_of_what_is_sampled(options: list[LogprobOptions | None], ties: bool, device: torch.device) -> None:
    """The model's own, whatever the sampler makes of the logits; in a mixture of requests."""
    requests, samplers = LogprobRequests(V), (CpuSampler(8, V, CPU), CudaSampler(8, V, device))
    rows = list(range(len(options)))[::-1]
    for row, wanted in enumerate(options):
        case = Case({"temperature": row % 2, "seed": row, "presence_penalty": 2.0, "top_k": 100}, [1, 2], [3])
        new = case.new_row(row)
        if wanted is not None:
            new.logprobs.CopyFrom(wanted)
        requests.add_row(row, new, case.prompt, case.output)
        for sampler in samplers:
            sampler.add_row(row, new, case.prompt, case.output)
    for _ in range(2):
        logits = logits_for(len(rows), ties)
        right, found = SampledScores(requests.sampled), SampledScores(requests.sampled, score)
        tokens = samplers[0].sample(logits.clone(), rows, right)
        assert samplers[1].sample(logits.clone().to(device), rows, found).tolist() == tokens.tolist()
        assert_alike(found.columns(), right.columns())


def test_no_row_wants_any(device: torch.device) -> None:
    sampler, scores = CudaSampler(2, V, device), SampledScores({}, score)
    sampler.add_row(0, Case({"temperature": 0.0}).new_row(0), [0], [])
    sampler.sample(logits_for(1, False).to(device), [0], scores)
    assert scores.columns() is None


def test_of_prompts(device: torch.device) -> None:
    """Parts of two rows, in more pieces than one."""
    hidden = logits_for(20, ties=True)  # the logits of each place in the step
    token_ids = np.random.default_rng(0).integers(0, V, (4, 30))
    parts = [
        PromptPart(0, 3, 1, 5, 12, LogprobCandidates(top_n=2)),
        PromptPart(1, 2, 0, 9, 11, LogprobCandidates()),
    ]
    row_starts = np.array([2, 13])
    right, scores = PromptScores(), PromptScores(score, 3 * V)
    right.add(parts, row_starts, token_ids, lambda places: hidden[places], V)
    scores.add(parts, row_starts, token_ids, lambda places: hidden[places].to(device), V)
    for mine, theirs in zip(scores.columns(), right.columns(), strict=True):
        assert (mine.row, mine.start) == (theirs.row, theirs.start)
        assert_alike(mine.columns, theirs.columns)
