"""Rows that between them ask for every kernel of the sampler: what a warm-up has to meet."""

from collections.abc import Iterator

from kernels.triton.sampling.top_n import MOST
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2, prompt_pb2
from worker.cuda.top_n import USUAL


def example_rows(vocab_size: int) -> Iterator[worker_pb2.NewRow]:
    """Rows without a number, tokens and blocks. One step for each is enough, alone or beside others: which
    kernels a step launches is what its rows ask for between them, and each is compiled once."""
    row, params = worker_pb2.NewRow, generation_pb2.SamplingParams
    yield row(sampling=params(temperature=0))
    yield row(sampling=params(temperature=1))
    yield row(sampling=params(temperature=1, top_k=2))
    yield row(sampling=params(temperature=1, typical_p=0.5))
    yield row(sampling=params(temperature=0, presence_penalty=1, logit_bias={0: 1.0}))
    yield row(
        sampling=params(temperature=0),
        bad_words=[prompt_pb2.TokenIds(ids=[0, 0])],
        stop_token_ids=[0],
        min_tokens=2,
    )
    for most in (USUAL, MOST):
        wanted = min(most, vocab_size)
        yield row(sampling=params(temperature=0), logprobs=generation_pb2.LogprobOptions(top_n=wanted))
        yield row(sampling=params(temperature=0), num_beam_candidates=wanted)
