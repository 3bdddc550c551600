"""More sequences than are returned: best_of and beam search, as far as the frontend knows of them. Pure.

A beam search is the engine's affair. best_of is ours: the engine samples that many sequences, with their
log-probabilities, and the stream keeps the n likeliest. In both cases nothing is delivered before the end.
"""

from collections.abc import Iterator

from pagewire.beam_limits import MAX_STOPS, NEUTRAL
from pagewire.v1 import generation_pb2


def returned(sampling: generation_pb2.SamplingParams) -> int:
    """Sequences that a request wants back."""
    return sampling.n if sampling.HasField("n") else 1


def contradictions(request: generation_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """(path, problem) of what cannot be asked for together."""
    sampling, n = request.sampling, returned(request.sampling)
    if sampling.HasField("best_of") and sampling.best_of < n:
        yield "sampling.best_of", f"must be at least n ({n}), not {sampling.best_of}"
    if not sampling.HasField("beam_search"):
        return
    with_beams = "cannot be combined with sampling.beam_search"
    if not sampling.beam_search.width:  # which the table does not see: 0 is what an absent width reads as
        yield "sampling.beam_search.width", "is required"
    elif n > sampling.beam_search.width:
        yield (
            "sampling.n",
            f"must be at most sampling.beam_search.width ({sampling.beam_search.width}), not {n}",
        )
    if sampling.HasField("best_of"):
        yield "sampling.best_of", with_beams
    for name, neutral in NEUTRAL.items():
        if sampling.HasField(name) and getattr(sampling, name) not in neutral:
            yield f"sampling.{name}", f"{with_beams}, but for {' and '.join(map(str, neutral))}"
    if len(request.stopping.stop_token_ids) > MAX_STOPS:
        yield "stopping.stop_token_ids", f"must be at most {MAX_STOPS} ids with sampling.beam_search"


def resolve_search(asked: generation_pb2.SamplingParams, sampling: generation_pb2.SamplingParams) -> None:
    """Fills in what a beam search leaves open, and takes the model's defaults for sampling away.

    asked: of the request. sampling: the same, over the defaults.
    """
    if not asked.HasField("beam_search"):
        return
    for name, (*_, off) in NEUTRAL.items():
        if not asked.HasField(name):
            setattr(sampling, name, off)
    search = sampling.beam_search
    if not search.HasField("length_penalty"):
        search.length_penalty = 1.0
    search.early_stopping = search.early_stopping
