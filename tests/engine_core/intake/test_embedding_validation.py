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
    """Blocks have 4 tokens. None is told to gateways, which know blocks by their tokens."""
    world = World()
    log = world.scheduler.prefix_cache.logged()
    for each in (message(), second):
        world.messages[each.handle] = each
        world.worker.namespaces[each.handle] = ("", "")
        world.scheduler.add(make_request(each, b"", 0.0, LIMITS))
        world.finish()
    assert world.ledger.cached[2] == found
    assert len(log) == 0


def test_values_of_which_the_model_makes_nan_are_at_fault() -> None:
    request = make_request(message(), b"", 0.0, LIMITS)
    problem = "prompt.embeddings: the model's output is NaN"
    assert no_token_error(request) == (Code.INVALID_ARGUMENT, "NO_LOGITS", problem)


def test_a_value_of_another_dtype_is_another_one() -> None:
    other = message()
    other.embeddings.dtype = "bfloat16"
    wide = make_request(message(), b"", 0.0, LIMITS).content_hashes
    narrow = make_request(other, b"", 0.0, replace(LIMITS, input_embedding_size=4)).content_hashes
    assert wide.keys() == narrow.keys() and not set(wide.values()) & set(narrow.values())
