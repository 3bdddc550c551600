"""Requests with media: what the engine core refuses, what a row gets, and what the prefix cache finds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine_core.errors import Refused
from engine_core.intake.validation import make_request
from engine_core.step.plan import NewRow, Plan, encode_plan
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, AddRequest, Pooling
from pagewire.internal.v1.worker_pb2 import StepPlan
from pagewire.ipc.columns import pack_u32
from tests.engine_core.fakes import LIMITS as OTHERS
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.world import World
from tests.logprob_columns import top

LIMITS = replace(OTHERS, input_embedding_size=2, max_item_vectors=6)


def message(handle: int = 1, *, positions: range = range(2, 8), content: bytes = b"image") -> AddRequest:
    made = add_request(handle, [*range(20, 33)], max_tokens=2)
    add_item(made, positions, content)
    return made


def add_embeddings(message: AddRequest) -> None:
    message.embeddings.dtype, message.embeddings.positions = "float32", pack_u32([9])
    message.embeddings.values = bytes(8)


def add_virtual_tokens(message: AddRequest) -> None:
    message.adapter.name, message.adapter.digest, message.adapter.virtual_tokens = "a", bytes(32), 2


REFUSED: dict[str, tuple[Callable[[AddRequest], object], str]] = {
    "kind": (lambda m: setattr(m.media[0], "kind", 0), "no encoder"),
    "digest": (lambda m: setattr(m.media[0], "digest", bytes(31)), "not resolved"),
    "two dimensions": (lambda m: m.media[0].shape.pop(), "shape"),
    "four channels": (lambda m: m.media[0].shape.__setitem__(2, 4), "shape"),
    "too few bytes": (lambda m: setattr(m.media[0], "data", b"abc"), "shape"),
    "no bytes": (lambda m: (setattr(m.media[0], "data", b""), m.media[0].shape.__setitem__(0, 0)), "shape"),
    "no position": (lambda m: m.media[0].ClearField("positions"), "positions"),
    "half a position": (lambda m: setattr(m.media[0], "positions", b"12345"), "positions"),
    "descending": (lambda m: setattr(m.media[0], "positions", pack_u32([1, 0])), "positions"),
    "twice": (lambda m: setattr(m.media[0], "positions", pack_u32([1, 1])), "positions"),
    "beyond": (lambda m: setattr(m.media[0], "positions", pack_u32([13])), "positions"),
    "larger than the cache": (
        lambda m: setattr(m.media[0], "positions", pack_u32(range(7))),
        "encoder cache",
    ),
    "overlap": (lambda m: add_item(m, range(7, 9)), "order"),
    "before": (lambda m: add_item(m, range(2)), "order"),
    "within": (lambda m: (m.media[0].ClearField("positions"), add_item(m, [3])), "positions"),
    "embeddings": (add_embeddings, "embeddings"),
    "virtual tokens": (add_virtual_tokens, "virtual tokens"),
    "scores": (lambda m: m.prompt_logprobs.CopyFrom(top(1)), "prompt_logprobs"),
    "pooling": (
        lambda m: (
            m.pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST)),
            setattr(m.stopping, "max_tokens", 1),
        ),
        "pooling",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    change, text = REFUSED[case]
    changed = message()
    change(changed)
    with pytest.raises(Refused, match=text) as refused:
        make_request(changed, b"", 0.0, LIMITS)
    assert refused.value.field == "prompt.media"


def test_a_model_without_an_encoder() -> None:
    with pytest.raises(Refused) as refused:
        make_request(message(), b"", 0.0, replace(LIMITS, media_kinds=frozenset()))
    assert (refused.value.field, refused.value.reason) == ("prompt.media", "FEATURE_UNSUPPORTED")


def test_a_row_gets_digests_and_positions_and_the_encoder_the_data() -> None:
    given = message()
    request = make_request(given, b"", 0.0, LIMITS)
    [item] = request.parameters.media
    plan = Plan(new_rows=[NewRow(0, request.prompt, 13, [0], 0, request.parameters)], encode=[item])
    plan.forgotten_media = [bytes(32), item.digest]
    encoded = StepPlan.FromString(encode_plan(plan).SerializeToString())
    [row], [sent] = encoded.new_rows, encoded.encode
    assert [(each.kind, each.digest, each.positions, each.data) for each in row.media] == [
        (given.media[0].kind, item.digest, given.media[0].positions, b"")
    ]
    expected = AddRequest(media=[given.media[0]]).media[0]
    expected.ClearField("positions")
    assert sent == expected and encoded.forgotten_media == bytes(32) + item.digest


def test_decoding_rows_may_have_drafts() -> None:
    assert make_request(message(), b"", 0.0, LIMITS).max_drafts > 0


@pytest.mark.parametrize(
    ("second", "found", "logged"),
    [
        (message(2), 12, 0),
        (message(2, content=b"other"), 0, 0),
        (message(2, positions=range(2, 7)), 4, 0),
        (message(2, positions=range(3, 8)), 0, 0),
        (message(2, positions=range(4, 10)), 0, 1),
        (add_request(2, [*range(20, 33)], max_tokens=2), 0, 3),
    ],
)
def test_prefixes_with_equal_media_are_shared(second: AddRequest, found: int, logged: int) -> None:
    """Gateways, which know blocks by their tokens, are told of those before the first vector."""
    world = World()
    log = world.scheduler.prefix_cache.logged()
    for each in (message(), second):
        world.take(each)
        world.finish()
    assert world.ledger.cached[2] == found
    assert len(log) == logged


@pytest.mark.parametrize(
    ("room", "positions", "problem"),
    [(5, range(2, 8), "--max-num-batched-tokens"), (6, [2, 3, 5], "do not follow one another")],
)
def test_what_no_step_computes_whole(room: int, positions: list[int], problem: str) -> None:
    given = add_request(1, [*range(20, 33)], max_tokens=2)
    add_item(given, positions, b"image")
    make_request(given, b"", 0.0, replace(LIMITS, max_whole_item=6 if room == 5 else None))
    with pytest.raises(Refused, match=problem):
        make_request(given, b"", 0.0, replace(LIMITS, max_whole_item=room))
