"""Validates requests that pool in the engine core; see validation.py."""

from __future__ import annotations

from engine_core.errors import Refused
from engine_core.intake.limits import Limits
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, AddRequest, Pooling


def read_pooling(message: AddRequest, limits: Limits) -> Pooling | None:
    """Returns how a request pools, if it does. Its other fields are valid. Raises Refused."""
    if not message.HasField("pooling"):
        return None
    pooling = message.pooling
    if not limits.embedding_size:
        raise Refused("pooling", "needs a worker that pools", "FEATURE_UNSUPPORTED")
    if pooling.type not in (POOLING_TYPE_LAST, POOLING_TYPE_MEAN):
        raise Refused("pooling.type", "is not known")
    if pooling.dimensions > limits.embedding_size:
        raise Refused("dimensions", f"must be at most {limits.embedding_size}")
    if message.sampling.n != 1 or message.stopping.max_tokens != 1:
        raise Refused("pooling", "needs n = 1 and max_tokens = 1")
    named = ("sampling.beam_search", message.sampling.HasField("beam_search")), ("grammar", message.grammar)
    logprobs = tuple((name, message.HasField(name)) for name in ("logprobs", "prompt_logprobs"))
    for name, given in (*named, *logprobs, ("delivered", message.delivered)):
        if given:
            raise Refused(name, "cannot be combined with pooling")
    return pooling
