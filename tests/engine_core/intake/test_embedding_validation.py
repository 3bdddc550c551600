"""Requests with values in place of tokens: what the engine core refuses, and what it finds in its cache."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine_core.context import no_token_error
from engine_core.errors import Code, Refused
from engine_core.intake.validation import make_request
from engine_core.step.plan import NewRow, Plan, encode_plan
from pagewire.internal.v1.engine_pb2 import AddRequest, InputEmbeddings
from pagewire.ipc.columns import pack_u32
from tests.engine_core.fakes import LIMITS as OTHERS
from tests.engine_core.fakes import add_request
from tests.engine_core.world import World
from tests.logprob_columns import top

LIMITS = replace(OTHERS, input_embedding_size=2)
VALUES = [bytes([n]) * 8 for n in range(9)]
"""Of two float32 each."""


def message(handle: int = 1, values: list[bytes] = VALUES, first: int = 0) -> AddRequest:
    given = InputEmbeddings(
        dtype="float32", positions=pack_u32(range(first, first + len(values))), values=b"".join(values)
    )
    made = add_request(handle, [0] * 9, max_tokens=2)
    made.embeddings.CopyFrom(given)
    return made


REFUSED: dict[str, tuple[Callable[[AddRequest], object], str]] = {
    "dtype": (lambda m: setattr(m.embeddings, "dtype", "float64"), "prompt.embeddings.dtype"),
    "no position": (lambda m: m.embeddings.ClearField("positions"), "prompt.embeddings"),
    "half a position": (lambda m: setattr(m.embeddings, "positions", b"12345"), "prompt.embeddings"),
    "descending": (lambda m: setattr(m.embeddings, "positions", pack_u32([1, 0])), "prompt.embeddings"),
    "twice": (lambda m: setattr(m.embeddings, "positions", pack_u32([1, 1])), "prompt.embeddings"),
    "beyond": (lambda m: setattr(m.embeddings, "positions", pack_u32([9])), "prompt.embeddings"),
    "size": (lambda m: setattr(m.embeddings, "values", bytes(71)), "prompt.embeddings.data"),
    "scores": (lambda m: m.prompt_logprobs.CopyFrom(top(1)), "output.prompt_logprobs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    change, field = REFUSED[case]
    changed = message()
    change(changed)
    with pytest.raises(Refused) as refused:
        make_request(changed, b"", 0.0, LIMITS)
    assert refused.value.field == field


def test_a_worker_that_takes_token_ids_alone() -> None:
    with pytest.raises(Refused) as refused:
        make_request(message(), b"", 0.0, OTHERS)
    assert refused.value.reason == "FEATURE_UNSUPPORTED"


def test_values_go_to_the_row_and_nothing_is_drafted() -> None:
    request = make_request(message(), b"", 0.0, LIMITS)
    assert request.max_drafts == 0
    row = NewRow(0, request.prompt, 9, [0], 0, request.parameters)
    [encoded] = encode_plan(Plan(new_rows=[row])).new_rows
    assert encoded.embeddings == message().embeddings


def virtual(handle: int = 1, count: int = 4, digest: bytes = b"d") -> AddRequest:
    made = add_request(handle, [0] * count + [*range(20, 29)], max_tokens=2)
    made.adapter.name, made.adapter.source, made.adapter.digest = "soft", "/soft", digest * 32
    made.adapter.virtual_tokens = count
    return made


VIRTUAL: dict[str, Callable[[AddRequest], object]] = {
    "alone": lambda m: setattr(m.adapter, "virtual_tokens", 13),
    "later": lambda m: setattr(m.adapter, "start", 1),
    "scores": lambda m: m.prompt_logprobs.CopyFrom(top(1)),
    "values": lambda m: m.embeddings.CopyFrom(message().embeddings),
}


@pytest.mark.parametrize("case", VIRTUAL)
def test_virtual_tokens_that_are_refused(case: str) -> None:
    VIRTUAL[case](changed := virtual())
    with pytest.raises(Refused, match="virtual tokens") as refused:
        make_request(changed, b"", 0.0, LIMITS)
    assert refused.value.field == "adapter"


def test_virtual_tokens_of_a_worker_that_takes_token_ids_alone() -> None:
    with pytest.raises(Refused) as refused:
        make_request(virtual(), b"", 0.0, OTHERS)
    assert (refused.value.field, refused.value.reason) == ("adapter", "FEATURE_UNSUPPORTED")


def test_virtual_tokens_go_to_the_row_and_nothing_is_drafted() -> None:
    request = make_request(virtual(), b"", 0.0, LIMITS)
    assert request.max_drafts == 0
    row = NewRow(0, request.prompt, 13, [0], 0, request.parameters)
    [encoded] = encode_plan(Plan(new_rows=[row])).new_rows
    assert (encoded.adapter.digest, encoded.adapter.virtual_tokens) == (b"d" * 32, 4)


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (virtual(2), 12),
        (virtual(2, digest=b"e"), 0),
        (virtual(2, count=3), 0),
        (add_request(2, [0] * 4 + [*range(20, 29)], max_tokens=2), 0),
    ],
)
def test_prefixes_behind_virtual_tokens_are_shared(second: AddRequest, found: int) -> None:
    """Those of one adapter. Gateways are not told of them: they have no ids."""
    assert cached_of_second(virtual(), second) == (found, 3 * (not second.HasField("adapter")))


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (message(2), 8),
        (message(2, [*VALUES[:7], b"differs!", VALUES[8]]), 4),
        (message(2, [b"differs!", *VALUES[1:]]), 0),
        (message(2, VALUES[:8]), 8),
        (message(2, VALUES[:6]), 4),
        (message(2, VALUES[1:], first=1), 0),
    ],
)
def test_prefixes_of_equal_values_are_shared(second: AddRequest, found: int) -> None:
    """None is told to gateways, which know blocks by their tokens."""
    assert cached_of_second(message(), second) == (found, 0)


def cached_of_second(first: AddRequest, second: AddRequest) -> tuple[int, int]:
    """Returns the tokens of a request that another one leaves in the cache, and how many blocks, of 4 tokens,
    gateways are told of."""
    world = World()
    world.worker.adapters = {each.adapter.digest for each in (first, second)}
    log = world.scheduler.prefix_cache.logged()
    for each in (first, second):
        world.messages[each.handle] = each
        world.worker.namespaces[each.handle] = ("", "")
        world.scheduler.add(make_request(each, b"", 0.0, LIMITS))
        world.finish()
    return world.ledger.cached[2], len(log)


def test_values_of_which_the_model_makes_nan_are_at_fault() -> None:
    request = make_request(message(), b"", 0.0, LIMITS)
    problem = "prompt.embeddings: the model's output is NaN"
    assert no_token_error(request) == (Code.INVALID_ARGUMENT, "NO_LOGITS", problem)


def test_an_adapter_with_which_the_model_makes_nan_is_at_fault() -> None:
    """It is no error of the service: its values may be of any size."""
    request = make_request(add_request(1, adapter="a"), b"", 0.0, LIMITS)
    problem = "the model's output is NaN with this adapter"
    assert no_token_error(request) == (Code.FAILED_PRECONDITION, "NO_LOGITS", problem)


def test_a_value_of_another_dtype_is_another_one() -> None:
    other = message()
    other.embeddings.dtype = "bfloat16"
    wide = make_request(message(), b"", 0.0, LIMITS).content_hashes
    narrow = make_request(other, b"", 0.0, replace(LIMITS, input_embedding_size=4)).content_hashes
    assert wide.keys() == narrow.keys() and not set(wide.values()) & set(narrow.values())
