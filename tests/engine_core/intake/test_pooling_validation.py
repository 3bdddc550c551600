"""Requests that pool and that the engine core refuses."""

import dataclasses
from collections.abc import Callable

import pytest

from engine_core.errors import Refused
from engine_core.intake.validation import make_request
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    AddRequest,
    Pooling,
)
from pagewire.ipc.columns import pack_u32
from tests.engine_core.fakes import LIMITS, add_request, make
from tests.logprob_columns import top

REFUSED: dict[str, tuple[Callable[[AddRequest], object], str]] = {
    "no type": (lambda m: m.pooling.ClearField("type"), "pooling.type"),
    "another type": (lambda m: m.pooling.MergeFromString(b"\x08\x07"), "pooling.type"),
    "too many dimensions": (lambda m: setattr(m.pooling, "dimensions", 5), "dimensions"),
    "logits and dimensions": (lambda m: m.pooling.token_ids.append(5), "pooling.token_ids"),
    "logits of no token": (
        lambda m: m.pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST, token_ids=[1 << 20])),
        "pooling.token_ids",
    ),
    "too many logits": (
        lambda m: m.pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST, token_ids=[5] * 9)),
        "pooling.token_ids",
    ),
    "a second text of no token": (lambda m: setattr(m.pooling, "second_text", 5), "pooling.second_text"),
    "several sequences": (lambda m: setattr(m.sampling, "n", 2), "pooling"),
    "output": (lambda m: setattr(m.stopping, "max_tokens", 2), "pooling"),
    "log-probabilities": (lambda m: m.logprobs.CopyFrom(top(1)), "logprobs"),
    "those of the prompt": (lambda m: m.prompt_logprobs.CopyFrom(top(1)), "prompt_logprobs"),
    "a grammar": (lambda m: setattr(m, "grammar", "x"), "grammar"),
    "delivered output": (lambda m: m.delivered.add(token_ids=pack_u32([5])), "delivered"),
}


def message() -> AddRequest:
    return add_request(1, 5, pooling=Pooling(type=POOLING_TYPE_LAST, dimensions=4))


def test_a_request_that_pools():
    request = make(message())
    assert request.pools and request.max_drafts == 0
    assert request.parameters.pooling == Pooling(type=POOLING_TYPE_LAST, dimensions=4)
    assert not make(add_request(1, 5)).pools


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    change, field = REFUSED[case]
    changed = message()
    change(changed)
    with pytest.raises(Refused) as refused:
        make(changed)
    assert refused.value.field == field


def test_the_largest_logits_are_pooled():
    changed, limits = message(), dataclasses.replace(LIMITS, head_sizes=(0, 0, 9))
    changed.pooling.CopyFrom(Pooling(type=POOLING_TYPE_MAX, head=3))
    assert make_request(changed, b"", 0.0, limits).pools
    changed.pooling.type = POOLING_TYPE_LAST
    with pytest.raises(Refused) as refused:
        make_request(changed, b"", 0.0, limits)
    assert refused.value.field == "pooling.head"


@pytest.mark.parametrize(
    ("dimensions", "fits"), [(0, False), ((1 << 23) // 5, True), ((1 << 23) // 5 + 1, False)]
)
def test_vectors_of_tokens_that_are_too_large(dimensions: int, fits: bool):
    """A last token's vector of this size is none."""
    changed, limits = message(), dataclasses.replace(LIMITS, embedding_size=1 << 23)
    changed.pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST))
    assert make_request(changed, b"", 0.0, limits).pools
    changed.pooling.CopyFrom(Pooling(type=POOLING_TYPE_ALL, dimensions=dimensions))
    if fits:
        assert make_request(changed, b"", 0.0, limits).pools
        return
    with pytest.raises(Refused) as refused:
        make_request(changed, b"", 0.0, limits)
    assert refused.value.field == "inputs"


def test_a_worker_that_cannot_pool():
    with pytest.raises(Refused) as refused:
        make_request(message(), b"", 0.0, dataclasses.replace(LIMITS, embedding_size=0))
    assert refused.value.reason == "FEATURE_UNSUPPORTED"
