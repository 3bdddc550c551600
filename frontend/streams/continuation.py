"""Resumes a stream that broke: the output that the client holds becomes the beginning of a new stream. Pure.

The client's tokens pass through detokenizer and stop strings as they did when they were generated, which puts
the new stream into the state of the broken one; the text they yield is what had been held back.
"""

from array import array

from frontend.errors import InvalidRequest
from frontend.prompts.prompt_encoding import read_token_ids
from frontend.streams.request_spec import RequestSpec
from frontend.streams.stream import Stream
from frontend.validation.defaults import Resolved
from pagewire.v1 import generation_pb2

NO_FINISH = generation_pb2.FINISH_REASON_UNSPECIFIED
EOS = generation_pb2.FINISH_REASON_EOS
STOP = generation_pb2.FINISH_REASON_STOP
MAX_TOKENS = generation_pb2.FINISH_REASON_MAX_TOKENS
CONTEXT_LENGTH = generation_pb2.FINISH_REASON_CONTEXT_LENGTH


class FinishRules:
    """The rules by which the core ends a sequence after a token, as in engine_core.request."""

    def __init__(self, spec: RequestSpec, *, has_grammar: bool) -> None:
        """has_grammar: EOS ends the sequence also before min_tokens."""
        stopping, limits = spec.resolved.stopping, spec.limits
        self._eos = frozenset[int]() if stopping.ignore_eos else limits.eos_token_ids
        self._stops = self._eos | frozenset(stopping.stop_token_ids)
        self._min_tokens = stopping.min_tokens
        self._until_eos = 0 if has_grammar else stopping.min_tokens
        self._max_tokens = stopping.max_tokens
        self._room = limits.max_model_len - len(spec.prompt.token_ids)

    def finish(self, token_ids: "array[int]") -> tuple[int, int]:
        """Returns why a sequence with these tokens has ended, and the token that matched (0: none).

        Raises ValueError, worded for the client, when it would have ended before.
        """
        before = token_ids[self._min_tokens : -1], token_ids[self._until_eos : -1]
        if not (self._stops.isdisjoint(before[0]) and self._eos.isdisjoint(before[1])):
            raise ValueError("go on after a token that ended the sequence")
        if len(token_ids) > min(self._max_tokens, self._room):
            limit = "max_tokens" if self._max_tokens <= self._room else "the context length"
            raise ValueError(f"are {len(token_ids)}, more than {limit} allows")
        if len(token_ids) > self._until_eos and token_ids[-1] in self._eos:
            return EOS, token_ids[-1]
        if len(token_ids) > self._min_tokens and token_ids[-1] in self._stops:
            return STOP, token_ids[-1]
        if len(token_ids) == self._max_tokens:
            return MAX_TOKENS, 0
        if len(token_ids) == self._room:
            return CONTEXT_LENGTH, 0
        return NO_FINISH, 0


def check_complete(resolved: Resolved, ended: bool) -> None:
    """Refuses to continue within output that is delivered as a whole: a client holds all of it,
    or nothing."""
    name = "best_of" if resolved.is_choice else "beam_search"
    if not ended and (resolved.is_choice or resolved.sampling.HasField("beam_search")):
        problem = f"cannot be combined with sampling.{name}, which delivers nothing before the end"
        raise InvalidRequest({"continuation.sequences": problem})


def resume(spec: RequestSpec, stream: Stream, *, has_grammar: bool) -> None:
    """Puts a new stream where the broken one stopped. Raises InvalidRequest.

    Takes time proportional to the number of tokens.
    """
    rules = FinishRules(spec, has_grammar=has_grammar)
    for place, sequence in enumerate(spec.request.continuation.sequences):
        path = f"continuation.sequences[{place}].token_ids"
        token_ids = read_token_ids(sequence.token_ids, spec.limits.vocab_size, path)
        try:
            reason, matched = rules.finish(token_ids)
            stream.resume(sequence.index, token_ids, reason, matched)
        except ValueError as error:
            raise InvalidRequest({path: str(error)}) from None
