"""Whatever a client sizes is judged by its length first: the largest message stops the event loop for no time
in which other streams would notice."""

import time
from collections.abc import Callable

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


def cost(work: Callable[[], object]) -> float:
    """Processor time of a call, the least of three, in seconds."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


def refused(check: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        check()


@pytest.mark.parametrize("make", [continuation, candidates, barred, sequences])
def test_a_long_list_is_refused_by_its_length(make):
    """In less than it takes to look at each element of such a list once."""
    request = make()
    request.MergeFrom(IDS)
    assert cost(lambda: refused(lambda: check_generate(request, LIMITS))) < cost(lambda: max(MANY)) / 2


def test_a_long_abort_is_refused_by_its_length():
    request = generation_pb2.AbortRequest(request_ids=["x" * 240] * 60_000)
    each = cost(lambda: [name.encode() for name in request.request_ids])
    assert cost(lambda: refused(lambda: check_abort(request))) < each
