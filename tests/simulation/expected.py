"""What a sequence becomes when it runs alone, from the formula of the simulated worker's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.v1 import generation_pb2
from pagewire_client.results import FinishReason
from pagewire_simulated.tokens import token_reference
from tests.frontend.fakes import SPECIAL
from tests.simulation.grammars import Twin
from tests.simulation.vocabulary import EOS, VOCAB_SIZE


@dataclass(frozen=True)
class Expected:
    """All of a sequence, and how it ends when nothing but its tokens ends it."""

    token_ids: list[int]
    text: str
    reason: FinishReason
    stop: str | int | None


def expect(
    request: generation_pb2.GenerateRequest,
    prompt: Sequence[int],
    index: int,
    max_model_len: int,
    adapted: bytes = b"",
) -> Expected:
    """The sequence with this index of a request, which says all that it wants by itself. adapted: see
    adapters.py."""
    sampling, stopping = request.sampling, request.stopping
    greedy = sampling.temperature == 0
    seed, number = (0, 0) if greedy else (sampling.seed, index)
    eos = frozenset() if stopping.ignore_eos else frozenset({EOS})
    stops = eos | frozenset(stopping.stop_token_ids)
    candidates = candidates_of(request, stops)
    limit = min(stopping.max_tokens, max_model_len) if stopping.HasField("max_tokens") else max_model_len
    twin = Twin(request) if request.HasField("structured_output") else None
    output: list[int] = []
    while True:
        if twin is not None:
            candidates = twin.candidates(len(output))
        output.append(token_reference(prompt, seed, number, len(output), candidates, adapted))
        if twin is not None:
            twin.advance(output[-1])
        text = text_of(output)
        found = [stop for stop in stopping.stop if stop in text] if len(output) > stopping.min_tokens else []
        if found:
            return Expected(output, text[: text.index(found[0])], FinishReason.STOP, found[0])
        is_complete = twin is not None and output[-1] == EOS
        if (is_complete or len(output) > stopping.min_tokens) and output[-1] in stops:
            kept = output if stopping.include_stop else output[:-1]
            reason = FinishReason.EOS if output[-1] in eos else FinishReason.STOP
            return Expected(output, text_of(kept), reason, output[-1])
        if len(output) >= limit:
            return Expected(output, text, FinishReason.MAX_TOKENS, None)
        if len(prompt) + len(output) >= max_model_len:
            return Expected(output, text, FinishReason.CONTEXT_LENGTH, None)


def text_of(token_ids: Sequence[int]) -> str:
    """Special tokens have no text; the others are bytes."""
    first = len(SPECIAL)
    return bytes(token - first for token in token_ids if token >= first).decode("utf-8", "replace")


def candidates_of(request: generation_pb2.GenerateRequest, stops: frozenset[int]) -> list[int]:
    """What may be chosen, ascending."""
    allowed = request.sampling.allowed_token_ids
    chosen = sorted(set(allowed)) if allowed else [t for t in range(VOCAB_SIZE) if t not in stops | {EOS}]
    return [token for token in chosen if token not in request.sampling.bad_token_ids]
