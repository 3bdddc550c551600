"""Validates beam searches in the engine core; see validation.py."""

from __future__ import annotations

from math import isfinite

from engine_core.beam_search import BeamParameters
from engine_core.context import Limits
from engine_core.errors import Refused
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.limits import MAX_LENGTH_PENALTY, MAX_STOPS, NEUTRAL
from pagewire.v1.generation_pb2 import SamplingParams


def read_beams(message: AddRequest, prompt_len: int, limits: Limits) -> BeamParameters | None:
    """Returns the beam search that a request asks for, if any. Its other fields are valid. Raises Refused."""
    sampling, stopping = message.sampling, message.stopping
    if not sampling.HasField("beam_search"):
        return None
    _check_search(sampling, limits)
    for name, neutral in NEUTRAL.items():
        if getattr(sampling, name) not in neutral:
            raise Refused(f"sampling.{name}", "cannot be combined with sampling.beam_search")
    if message.delivered:
        raise Refused("continuation.sequences", "cannot be combined with sampling.beam_search")
    if message.HasField("logprobs"):
        raise Refused("output.logprobs", "is not supported with sampling.beam_search", "FEATURE_UNSUPPORTED")
    if not stopping.max_tokens:
        raise Refused("stopping.max_tokens", "must be at least 1 with sampling.beam_search")
    stops = frozenset(stopping.stop_token_ids)
    if len(stops) > MAX_STOPS:
        raise Refused("stopping.stop_token_ids", f"must be at most {MAX_STOPS} with sampling.beam_search")
    parameters = BeamParameters(
        width=sampling.beam_search.width,
        num_results=sampling.n,
        length_penalty=sampling.beam_search.length_penalty,
        early_stopping=sampling.beam_search.early_stopping,
        stops=stops if stopping.ignore_eos else stops | limits.eos_token_ids,
        min_tokens=stopping.min_tokens,
        max_output=min(stopping.max_tokens, limits.max_model_len - prompt_len),
        vocab_size=limits.vocab_size,
    )
    _check_room(parameters, prompt_len, limits)
    return parameters


def _check_search(sampling: SamplingParams, limits: Limits) -> None:
    path, search = "sampling.beam_search", sampling.beam_search
    for name in ("length_penalty", "early_stopping"):
        if not search.HasField(name):
            raise Refused(f"{path}.{name}", "is not resolved")
    if not 1 <= search.width <= limits.max_num_seqs:
        raise Refused(f"{path}.width", f"must be 1 to {limits.max_num_seqs}")
    if sampling.n > search.width:
        raise Refused("sampling.n", f"must be at most the width of {path}, {search.width}")
    if not (isfinite(search.length_penalty) and abs(search.length_penalty) <= MAX_LENGTH_PENALTY):
        raise Refused(f"{path}.length_penalty", f"must be -{MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}")


def _check_room(parameters: BeamParameters, prompt_len: int, limits: Limits) -> None:
    """Raises Refused unless all beams fit into the pool, sharing only the full blocks of the prompt."""
    shared = prompt_len // limits.block_size
    last_slot = prompt_len + parameters.max_output - 1
    own = -(-last_slot // limits.block_size) - shared
    most = shared + parameters.width * own
    if most > limits.num_blocks:
        raise Refused(
            "sampling.beam_search.width",
            f"{parameters.width} may need {most} KV blocks for a prompt of {prompt_len} tokens and"
            f" {parameters.max_output} more, of {limits.num_blocks}: ask for fewer beams or max_tokens",
            "CONTEXT_LENGTH_EXCEEDED",
        )
