"""Whatever a client sizes is judged by its length first: the largest message stops the event loop for no time
in which other streams would notice."""

import time

import pytest

from frontend.errors import InvalidRequest
from frontend.validation.requests import check_abort, check_generate
from frontend.validation.rules import Limits
from pagewire.v1 import generation_pb2

LIMITS = Limits(151_936, 131_072, frozenset({2}), 64, 16, max_logprobs=20)
MANY = [7] * 8_000_000
"""About half of what a message of 16 MiB holds."""
IDS = generation_pb2.GenerateRequest(prompt={"text": "x"}, sampling={"seed": 1})


def continuation() -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(continuation={"sequences": [{"token_ids": MANY}]})


def candidates() -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(output={"logprobs": {"token_ids": {"ids": MANY}}})


def barred() -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(sampling={"bad_token_ids": MANY, "allowed_token_ids": [1]})


def sequences() -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(continuation={"sequences": [{"index": 1}] * 16_000})


@pytest.mark.parametrize("make", [continuation, candidates, barred, sequences])
def test_a_long_list_is_refused_by_its_length(make):
    request = make()
    request.MergeFrom(IDS)
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        check_generate(request, LIMITS)
    assert time.process_time() - began < 0.15


def test_a_long_abort_is_refused_by_its_length():
    request = generation_pb2.AbortRequest(request_ids=["x" * 240] * 60_000)
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        check_abort(request)
    assert time.process_time() - began < 0.02
