"""Beams over a fake model, and a plain reference of the search: dense, over every token."""

from math import inf

from engine_core.intake.validation import Limits
from engine_core.request import FinishReason
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.ipc.columns import unpack_u32
from pagewire.v1.generation_pb2 import BeamSearch

EOS = 2
TOKENS = (EOS, *range(100, 112), *range(600, 610))
"""Tokens that the fake model gives beams; all others have probability 0."""


def fake_logprobs(tokens: list[int], forbidden: frozenset[int] | tuple[int, ...]) -> dict[int, float]:
    """The fake model's distribution after prompt and output. Few values, which add up without rounding, so
    that many candidates are equals."""
    history = hash(tuple(tokens))
    return {token: -(1 + hash((history, token)) % 64) / 16 for token in TOKENS if token not in forbidden}


def fake_offers(tokens: list[int], forbidden: tuple[int, ...], count: int) -> list[tuple[int, float]]:
    """Returns the `count` most probable tokens, as a worker does."""
    logprobs = fake_logprobs(tokens, forbidden)
    offers = sorted(logprobs.items(), key=lambda pair: (-pair[1], pair[0]))[:count]
    return offers + [(0, -inf)] * (count - len(offers))


def beam_search(width: int, length_penalty: float = 1.0, early_stopping: bool = False) -> BeamSearch:
    """As frontends send it: every scalar present."""
    return BeamSearch(width=width, length_penalty=length_penalty, early_stopping=early_stopping)


def expected_beams(message: AddRequest, limits: Limits) -> list[tuple[list[int], FinishReason]]:
    """Returns the results of an undisturbed search, best first."""
    search, stopping = message.sampling.beam_search, message.stopping
    prompt = unpack_u32(message.prompt_token_ids)
    eos = frozenset[int]() if stopping.ignore_eos else limits.eos_token_ids
    stops = eos | frozenset(stopping.stop_token_ids)
    most = min(stopping.max_tokens, limits.max_model_len - len(prompt))
    beams: list[tuple[float, list[int]]] = [(0.0, [])] + [(-1e9, [])] * (search.width - 1)
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        early = length <= stopping.min_tokens
        candidates = [
            (score + logprob, output, token)
            for score, output in beams
            for token, logprob in fake_offers(prompt + output, tuple(stops) if early else (), len(TOKENS))
            if logprob > -inf
        ]
        candidates.sort(key=lambda candidate: -candidate[0])  # stable
        ends = [length == most or (token in stops and not early) for _, _, token in candidates]
        best = list(zip(candidates, ends, strict=True))
        norm = length**search.length_penalty
        finished += [(score / norm, output + [t]) for (score, output, t), end in best[: search.width] if end]
        finished = sorted(finished, key=lambda pair: -pair[0])[: search.width]
        beams = [(score, output + [t]) for (score, output, t), end in best if not end][: search.width]
        if (
            not beams
            or len(finished) == search.width
            and (search.early_stopping or beams[0][0] / norm <= finished[-1][0])
        ):
            break
    return [(output, _reason(output, message, eos, stops)) for _, output in finished[: message.sampling.n]]


def _reason(
    output: list[int], message: AddRequest, eos: frozenset[int], stops: frozenset[int]
) -> FinishReason:
    if len(output) > message.stopping.min_tokens and output[-1] in stops:
        return FinishReason.EOS if output[-1] in eos else FinishReason.STOP
    full = len(output) >= message.stopping.max_tokens
    return FinishReason.MAX_TOKENS if full else FinishReason.CONTEXT_LENGTH
