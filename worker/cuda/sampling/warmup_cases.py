"""Rows that together launch every kernel of the sampler, for the warm-up."""

from collections.abc import Iterator

from kernels.triton.sampling.top_n import MOST
from pagewire.internal.v1 import worker_pb2
from pagewire.v1 import generation_pb2, prompt_pb2
from worker.cuda.sampling.top_n import USUAL


def example_rows(vocab_size: int) -> Iterator[worker_pb2.NewRow]:
    """Yields rows without number, tokens and blocks. One step for each is enough: the kernels of a step are
    those that any of its rows needs, and each is compiled once."""
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
    for largest in (USUAL, MOST):
        count = min(largest, vocab_size)
        yield row(sampling=params(temperature=0), logprobs=generation_pb2.LogprobOptions(top_n=count))
        yield row(sampling=params(temperature=0), num_beam_candidates=count)
