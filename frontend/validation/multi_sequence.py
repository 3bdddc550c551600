"""Requests that generate more sequences than they return: best_of and beam search. Pure.

A beam search runs in the engine. For best_of the engine samples that many sequences with log-probabilities,
and the stream keeps the n most probable. In both cases nothing is delivered before the end.
"""

from collections.abc import Iterator

from frontend.validation.rules import computes_prompt_only
from pagewire.limits import MAX_STOPS, NEUTRAL
from pagewire.v1 import generation_pb2


def returned(sampling: generation_pb2.SamplingParams) -> int:
    """Returns the number of sequences that a request asks for."""
    return sampling.n if sampling.HasField("n") else 1


def sequences_of(sampling: generation_pb2.SamplingParams) -> tuple[int, str]:
    """Returns the number of sequences that a request runs at once, and the field that asks for them."""
    if sampling.HasField("beam_search"):
        return sampling.beam_search.width, "sampling.beam_search.width"
    if sampling.HasField("best_of"):
        return sampling.best_of, "sampling.best_of"
    return returned(sampling), "sampling.n"


def contradictions(request: generation_pb2.GenerateRequest) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for fields that cannot be combined."""
    sampling, n = request.sampling, returned(request.sampling)
    if sampling.HasField("best_of") and sampling.best_of < n:
        yield "sampling.best_of", f"must be at least n ({n}), not {sampling.best_of}"
    if not sampling.HasField("beam_search"):
        return
    with_beams = "cannot be combined with sampling.beam_search"
    if computes_prompt_only(request.stopping):
        yield "stopping.max_tokens", "must be at least 1 with sampling.beam_search"
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
    """Fills in the defaults of a beam search, and removes the model's sampling defaults.

    asked: the request's parameters. sampling: the same, merged over the defaults.
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
