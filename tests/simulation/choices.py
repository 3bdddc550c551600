"""What best_of and beam search return: the plain twins of what frontend and core do. Everything at once, over
every candidate."""

from array import array
from collections.abc import Sequence

from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from pagewire_client.results import FinishReason
from pagewire_simulated.beams import first_history, next_history, top_candidates
from tests.simulation.expected import Expected, candidates_of, expect, text_of
from tests.simulation.scores import rank_scores
from tests.simulation.vocabulary import EOS

_NEVER = -1e9


def expect_all(
    request: generation_pb2.GenerateRequest,
    prompt: Sequence[int],
    max_model_len: int,
    adapted: bytes = b"",
) -> list[Expected]:
    """What a client gets, by index. adapted: see adapters.py."""
    if request.sampling.HasField("beam_search"):
        return _expect_beams(request, prompt, max_model_len, adapted)
    made = expect_sampled(request, prompt, max_model_len, adapted)
    most_probable = (
        sorted(made, key=lambda one: -_likelihood(prompt, one)) if len(made) > request.sampling.n else made
    )
    return most_probable[: request.sampling.n]


def expect_sampled(
    request: generation_pb2.GenerateRequest,
    prompt: Sequence[int],
    max_model_len: int,
    adapted: bytes = b"",
) -> list[Expected]:
    """All sequences that are sampled."""
    number = max(request.sampling.n, request.sampling.best_of)
    return [expect(request, prompt, index, max_model_len, adapted) for index in range(number)]


def _likelihood(prompt: Sequence[int], one: Expected) -> float:
    scores = rank_scores([*prompt, *one.token_ids])[len(prompt) :]
    return sum(array("f", [value for value, _ in scores]))


def _expect_beams(
    request: generation_pb2.GenerateRequest, prompt: Sequence[int], max_model_len: int, adapted: bytes
) -> list[Expected]:
    search, stopping = request.sampling.beam_search, request.stopping
    eos = frozenset() if stopping.ignore_eos else frozenset({EOS})
    stops = eos | frozenset(stopping.stop_token_ids)
    candidates = candidates_of(request, stops)
    most = max_model_len - len(prompt)
    if stopping.HasField("max_tokens"):
        most = min(most, stopping.max_tokens)
    penalty = search.length_penalty if search.HasField("length_penalty") else 1.0
    first = first_history(pack_u32(prompt) + adapted)
    beams: list[tuple[float, int, list[int]]] = [(0.0, first, [])]
    beams += [(_NEVER, first, [])] * (search.width - 1)
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        made = [
            (score + logprob, history, output, token)
            for score, history, output in beams
            for token, logprob in top_candidates(history, candidates, len(candidates))
        ]
        made.sort(key=lambda one: -one[0])  # stable: of equals the better beam's
        is_end = [length == most or (token in stops and length > stopping.min_tokens) for *_, token in made]
        norm = float(length**penalty)
        best = list(zip(made, is_end, strict=True))
        finished += [
            (score / norm, [*output, token]) for (score, _, output, token), end in best[: search.width] if end
        ]
        finished = sorted(finished, key=lambda one: -one[0])[: search.width]
        alive = [one for one, end in best if not end][: search.width]
        beams = [
            (score, next_history(history, token), [*output, token]) for score, history, output, token in alive
        ]
        if (
            not beams
            or len(finished) == search.width
            and (search.early_stopping or beams[0][0] / norm <= finished[-1][0])
        ):
            break
    return [_as_expected(request, output, eos, stops) for _, output in finished[: request.sampling.n]]


def _as_expected(
    request: generation_pb2.GenerateRequest, output: list[int], eos: frozenset[int], stops: frozenset[int]
) -> Expected:
    stopping = request.stopping
    if len(output) > stopping.min_tokens and output[-1] in stops:
        reason = FinishReason.EOS if output[-1] in eos else FinishReason.STOP
        kept = output if stopping.include_stop else output[:-1]
        return Expected(output, text_of(kept), reason, output[-1])
    full = stopping.HasField("max_tokens") and len(output) >= stopping.max_tokens
    reason = FinishReason.MAX_TOKENS if full else FinishReason.CONTEXT_LENGTH
    return Expected(output, text_of(output), reason, None)
