"""Messages that no client would write, to every method (R28, S8 to S11)."""

import random
from collections import Counter

import grpc
import pytest

from frontend.grpc_services import DESCRIPTORS
from pagewire.local_service import Service
from tests.hostile.messages import any_message, damage
from tests.hostile.oracle import check_error, unharmed

METHODS = {
    f"/{service.full_name}/{method.name}": method.input_type
    for service in DESCRIPTORS
    for method in service.methods
    if method.name not in ("Drain", "Resume")  # which do what they are told
}
CALLS = 600
IN_FLIGHT = 32
DEADLINE_S = 20.0
ENDLESS = {"/pagewire.v1.AdminService/WatchLoad": 0.5}
"""Seconds that calls get which have no end of their own."""


def send_all(address: str, requests: list[tuple[str, bytes]]) -> Counter[tuple[str, grpc.StatusCode]]:
    """Sends raw messages, a few at a time; the statuses."""
    found: Counter[tuple[str, grpc.StatusCode]] = Counter()
    with grpc.insecure_channel(address) as channel:
        for start in range(0, len(requests), IN_FLIGHT):
            calls = [
                (method, channel.unary_stream(method)(data, timeout=ENDLESS.get(method, DEADLINE_S)))
                for method, data in requests[start : start + IN_FLIGHT]
            ]
            for method, call in calls:
                found[method.rpartition("/")[2], drain(call)] += 1
    return found


def drain(call) -> grpc.StatusCode:
    """Reads a call to its end; its status."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return check_error(error)
    return grpc.StatusCode.OK


@pytest.mark.parametrize("seed", [1, 2])
def test_messages_of_any_content(victim: Service, seed: int) -> None:
    draw = random.Random(seed)
    requests = []
    for _ in range(CALLS):
        method = draw.choice([*METHODS, *["/pagewire.v1.GenerationService/Generate"] * 12])
        requests.append((method, any_message(METHODS[method], draw).SerializeToString()))
    with unharmed(victim):
        found = send_all(victim.address, requests)
    assert found["Generate", grpc.StatusCode.INVALID_ARGUMENT] > 50
    assert {name for name, _ in found} == {method.rpartition("/")[2] for method in METHODS}


def good_request() -> dict:
    """A request that is served, whose values can be made odd one by one."""
    return {
        "prompt": {"text": "hello"},
        "sampling": {"temperature": 0.7, "n": 2, "seed": 4},
        "stopping": {"max_tokens": 6, "stop": ["zz"]},
        "output": {"logprobs": {"top_n": 2}, "token_ids": True},
    }


def test_damaged_bytes_of_good_messages(victim: Service) -> None:
    """Most of them are messages still, of other content; the rest is MALFORMED_MESSAGE."""
    draw = random.Random(3)
    method = "/pagewire.v1.GenerationService/Generate"
    good = METHODS[method]._concrete_class(**good_request()).SerializeToString()
    with unharmed(victim):
        found = send_all(victim.address, [(method, damage(good, draw)) for _ in range(CALLS)])
    assert found["Generate", grpc.StatusCode.OK] > 20
    assert found["Generate", grpc.StatusCode.INVALID_ARGUMENT] > 100


def test_good_requests_with_one_odd_field(victim: Service) -> None:
    """What passes validation must not raise further inside."""
    draw = random.Random(4)
    method = "/pagewire.v1.GenerationService/Generate"
    kind = METHODS[method]._concrete_class
    requests = []
    for _ in range(CALLS):
        request = kind(**good_request())
        odd = any_message(METHODS[method], draw)
        kept = draw.choice(METHODS[method].fields).name
        for field, _ in odd.ListFields():
            if field.name != kept:
                odd.ClearField(field.name)
        request.MergeFrom(odd)
        request.stopping.max_tokens = min(request.stopping.max_tokens, 32)
        requests.append((method, request.SerializeToString()))
    with unharmed(victim):
        found = send_all(victim.address, requests)
    assert found["Generate", grpc.StatusCode.OK] > 60
