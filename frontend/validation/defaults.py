"""Fills in a request's absent fields, so that the engine gets no defaults to resolve, and checks whether its
response can be sent: a message holds at most 64 MiB. Pure.

A slow reader's stream is cut into messages of one sequence at least; a response in one message has all
sequences. Both are checked by their maximum size, before anything is computed.
"""

from dataclasses import dataclass

from frontend.errors import InvalidRequest
from frontend.validation.multi_sequence import resolve_search
from frontend.validation.rules import Limits, num_candidates
from pagewire.ipc.logprob_columns import MAX_OUTPUT_VALUES
from pagewire.v1 import generation_pb2

COLDEST = 1e-5
"""A lower temperature counts as 0: logits divided by it overflow, and sampling is greedy anyway."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Public messages in which every scalar is set. Strings stay in the frontend."""

    sampling: generation_pb2.SamplingParams
    stopping: generation_pb2.StoppingCriteria
    num_returned: int
    """Sequences that the client gets, of the n that the engine generates."""

    @property
    def is_choice(self) -> bool:
        """True when only the most probable of the generated sequences are returned."""
        return self.num_returned < self.sampling.n


def resolve(
    request: generation_pb2.GenerateRequest,
    defaults: generation_pb2.SamplingParams,
    limits: Limits,
    seed: int,
) -> Resolved:
    """Resolves a validated request against the model's defaults. seed: of a request that has none."""
    sampling = generation_pb2.SamplingParams()
    sampling.CopyFrom(defaults)
    sampling.MergeFrom(request.sampling)
    if sampling.temperature < COLDEST:
        sampling.temperature = 0.0
    if sampling.top_k >= limits.vocab_size:
        sampling.top_k = 0
    if not sampling.HasField("seed"):
        sampling.seed = seed
    resolve_search(request.sampling, sampling)
    num_returned = sampling.n
    if sampling.HasField("best_of"):
        sampling.n = sampling.best_of
        sampling.ClearField("best_of")
    sampling.ClearField("bad_words")  # sent as token ids
    return Resolved(sampling, _stopping(request.stopping, limits.max_model_len), num_returned)


def _stopping(asked: generation_pb2.StoppingCriteria, max_model_len: int) -> generation_pb2.StoppingCriteria:
    stopping = generation_pb2.StoppingCriteria()
    stopping.CopyFrom(asked)
    # Without a limit of its own a sequence ends when the context is full, and says so
    # (FINISH_REASON_CONTEXT_LENGTH): this limit is never met, as the prompt has at least one token.
    limit = asked.max_tokens if asked.HasField("max_tokens") else max_model_len
    stopping.max_tokens = min(limit, max_model_len)
    stopping.min_tokens = min(asked.min_tokens, max_model_len)
    stopping.ignore_eos = asked.ignore_eos
    stopping.include_stop = asked.include_stop
    stopping.ClearField("stop")
    stopping.ClearField("stop_regex")
    stopping.ClearField("repetition")
    return stopping


def check_answer_size(
    request: generation_pb2.GenerateRequest,
    resolved: Resolved,
    prompt_len: int,
    limits: Limits,
    *,
    in_one_message: bool,
) -> None:
    """Raises InvalidRequest when log-probabilities may exceed a message.

    A token has its own and its candidates' log-probability; with bytes each counts twice. (Those of a prompt
    have a limit of their own: see frontend/engine/logprobs.py.)
    """
    output = request.output
    if not output.HasField("logprobs"):
        return
    most = min(resolved.stopping.max_tokens, limits.max_model_len - prompt_len)
    each = (1 + num_candidates(output.logprobs, limits.vocab_size)) * (2 if output.token_bytes else 1)
    sequences = resolved.num_returned if in_one_message else 1
    prompt = 0
    if output.HasField("prompt_logprobs"):
        positions = prompt_len - output.prompt_logprobs_start
        prompt = positions * num_candidates(output.prompt_logprobs, limits.vocab_size)
    total = sequences * most * each + prompt
    if total <= MAX_OUTPUT_VALUES:
        return
    what = f"of {sequences} x {most} tokens" if in_one_message else f"of {most} tokens"
    problem = (
        f"{what} and the prompt may be {total} values in one message, more than {MAX_OUTPUT_VALUES}:"
        " set stopping.max_tokens, or ask for fewer candidates"
    )
    raise InvalidRequest({"output.logprobs": problem})
