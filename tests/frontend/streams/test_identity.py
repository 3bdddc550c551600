"""What makes two calls the same request."""

import pytest

from frontend.auth.caller import ANONYMOUS, Caller
from frontend.streams.request_spec import RequestIdentity, identify
from pagewire.v1 import generation_pb2
from tests.frontend.fakes import make_request


def identity_of(
    caller: Caller = ANONYMOUS, tenant: str = "t", request_id: str = "x", **fields
) -> RequestIdentity:
    return identify(make_request(request_id=request_id, **fields), caller, tenant)


def test_a_seed_that_the_client_leaves_to_the_server_follows_from_the_id():
    """So that whatever became of the first call, the next one has the same tokens."""
    one = identity_of()
    assert one == identity_of() and one.request_id == one.engine_id == "x"
    assert one.seed != identity_of(request_id="y").seed
    assert identity_of(sampling={"seed": 7}).seed == 7
    alice, bob = (identity_of(Caller(tenant=name), name) for name in ("alice", "bob"))
    assert alice.engine_id == "alice/x" and alice.seed != bob.seed


def test_a_seed_for_all_requests_that_have_none():
    request = make_request(request_id="")
    assert identify(request, ANONYMOUS, "t", default_seed=0).seed == 0
    named = make_request(request_id="x", sampling={"seed": 7})
    assert identify(named, ANONYMOUS, "t", default_seed=5).seed == 7


def test_without_an_id_everything_is_drawn():
    one, other = identity_of(request_id=""), identity_of(request_id="")
    assert one.request_id != other.request_id and one.seed != other.seed and one.content != other.content


@pytest.mark.parametrize(
    "request_ids", [[""] * 64, [str(number) for number in range(64)]], ids=["drawn", "by id"]
)
def test_seeds_are_drawn_from_all_64_bits(request_ids):
    seeds = {identity_of(request_id=name).seed for name in request_ids}
    assert len(seeds) == 64 and max(seeds) > 2**56


def _with_media(*media: dict) -> dict:
    return {"prompt": {"text": "a", "media": media}}


def test_images_count_by_their_content_and_not_by_its_spelling():
    one = identity_of(**_with_media({"data": b"abc"}))
    assert one == identity_of(**_with_media({"uri": "data:image/png;base64,YWJj"}))
    assert one == identity_of(**_with_media({"uri": "data:;base64,YWJj", "mime_type": "image/png"}))
    others = [{"data": b"abd"}], [{"data": b"abc"}, {"data": b"abc"}], []
    assert all(one.content != identity_of(**_with_media(*media)).content for media in others)
    parts = [{"text": "a"}, {"media": {"data": b"abc"}}]
    chats = [{"chat": {"messages": [{"role": "user", "content": each}]}} for each in (parts, parts[::-1])]
    assert len({identity_of(prompt=chat).content for chat in chats}) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": {"seed": identity_of().seed}},
        {"stopping": {"time_limit": {"seconds": 3}}},
        {"continuation": {"sequences": [{"token_ids": [1, 2]}]}},
        {"routing": {"session_id": "s"}},
        {"speculation": {"max_draft_tokens": 2}},
    ],
    ids=str,
)
def test_an_attempt_differs_in_what_is_left_and_where_it_runs(fields):
    assert identity_of(**fields).content == identity_of().content


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": {"text": "ho"}},
        {"sampling": {"seed": 1}},
        {"sampling": {"logit_bias": {5: 1.0}}},
        {"stopping": {"stop": ["."]}},
        {"output": {"text": False}},
        {"priority": 1},
    ],
    ids=str,
)
def test_another_content(fields):
    assert identity_of(**fields).content != identity_of().content
    assert identity_of(tenant="other").content != identity_of().content


def test_what_ends_with_a_vector_has_no_digest():
    assert not identify(make_request(request_id="x"), ANONYMOUS, "t", is_pooled=True).content


def test_the_order_of_a_map_does_not_matter():
    biases = [{1: 1.0, 2: 2.0, 300: 3.0}, {300: 3.0, 2: 2.0, 1: 1.0}]
    first, second = (identity_of(sampling={"logit_bias": bias}) for bias in biases)
    assert first == second


def test_the_request_is_left_as_it_is():
    request = make_request(request_id="x", stopping={"time_limit": {"seconds": 3}})
    before = generation_pb2.GenerateRequest()
    before.CopyFrom(request)
    identify(request, ANONYMOUS, "t")
    assert request == before
