"""What plans encode and forget, and where chunks of prompts end for it. The fake worker checks that each
position has its vector, and that cache and budget suffice."""

from collections.abc import Iterable

import pytest

from engine_core.request import NO_TOKEN
from engine_core.scheduler.outputs.wait_causes import Cause
from engine_core.step.plan import Plan
from pagewire.internal.v1.engine_pb2 import AddRequest
from tests.engine_core.fakes import add_item, add_request
from tests.engine_core.world import World, columns


def image_request(
    handle: int, prompt: int, *items: tuple[bytes, Iterable[int]], **options: object
) -> AddRequest:
    """A request with items: content and positions of each."""
    options = {"max_tokens": 3, "ignore_eos": True} | options
    message = add_request(handle, prompt, **options)  # type: ignore[arg-type]
    for content, positions in items:
        add_item(message, positions, content)
    return message


def sizes(plan: Plan) -> list[int]:
    """Vectors of the items that a plan encodes."""
    return [len(item.positions) for item in plan.encode]


def test_an_item_is_encoded_when_a_chunk_first_needs_it_and_kept_for_the_next() -> None:
    world = World(budget=8)
    world.take(image_request(1, 20, (b"a", range(4, 12)), (b"b", range(17, 20))))
    plans = [world.step() for _ in range(3)]
    assert [sizes(plan) for plan in plans] == [[8], [], [3]]
    assert [columns(plan) for plan in plans] == [[(0, 8)], [(8, 8)], [(16, 4)]]
    world.finish()


def test_equal_items_of_requests_that_are_here_are_encoded_once() -> None:
    world = World(prefix_cache=False)
    for handle in (1, 2):
        world.take(image_request(handle, 20, (b"a", range(4)), (b"b", range(4, 8)), (b"a", range(8, 12))))
    assert sizes(world.step()) == [4, 4]
    assert world.scheduler.encoder.num_encoded_vectors == 8
    world.finish()


def test_a_prefix_that_is_cached_needs_no_encoder() -> None:
    """Of the second item the cache has a part: it is encoded whole."""
    world = World(encoder_cache=8)
    for handle, last in ((1, b"z"), (2, b"b"), (3, b"a")):
        items = (b"a", range(8)), (b"b", range(10, 18))
        world.take(image_request(handle, [*range(20 + (last != b"b"))], *items, tenant="t"))
        world.finish()
    encoded = [sizes(plan) for plan in world.worker.plans if plan.encode]
    assert encoded[0] == [8] and world.ledger.cached[2] == 16 and world.ledger.cached[3] == 20


def test_a_chunk_ends_before_what_the_budget_has_no_room_for() -> None:
    world = World(encoder_budget=10, encoder_cache=30)
    world.take(image_request(1, 30, (b"a", range(2, 8)), (b"b", range(10, 16)), (b"c", range(20, 24))))
    plans = [world.step() for _ in range(2)]
    assert [columns(plan) for plan in plans] == [[(0, 10)], [(10, 20)]]
    assert [sizes(plan) for plan in plans] == [[6], [6, 4]]
    world.finish()


def test_an_item_beyond_the_budget_goes_alone() -> None:
    world = World(encoder_budget=4, encoder_cache=30)
    world.take(image_request(1, 30, (b"a", range(3)), (b"b", range(10, 16)), (b"c", range(20, 21))))
    assert [sizes(world.step()) for _ in range(3)] == [[3], [6], [1]]
    world.finish()


def test_what_was_used_least_recently_makes_room_and_nothing_that_the_step_needs() -> None:
    world = World(encoder_cache=12, prefix_cache=False)
    digests = {}
    for handle, name in enumerate([b"a", b"b", b"a", b"c", b"a", b"b"], start=1):
        request = world.take(image_request(handle, 10, (name, range(6))))
        digests[request.parameters.media[0].digest] = name
        world.finish()
    encoded = [digests[item.digest] for plan in world.worker.plans for item in plan.encode]
    forgotten = [digests[digest] for plan in world.worker.plans for digest in plan.forgotten_media]
    assert (encoded, forgotten) == ([b"a", b"b", b"c", b"b"], [b"b", b"c"])
    world.take(image_request(7, 20, (b"d", range(6)), (b"a", range(6, 12)), (b"b", range(12, 18))))
    assert columns(world.step()) == [(0, 12)]
    world.finish()


def test_a_sequence_waits_where_its_first_item_finds_no_room() -> None:
    world = World(encoder_budget=8, encoder_cache=30)
    world.take(image_request(1, 10, (b"a", range(6))))
    world.take(image_request(2, 10, (b"b", range(6))))
    world.take(image_request(3, 10, (b"c", range(6)), tenant="t"))
    assert columns(world.step()) == [(0, 10)]
    assert world.scheduler.states.wait_causes.cause is Cause.ENCODER
    assert sizes(world.step()) == [6]
    world.finish()


def test_text_begins_beside_a_prompt_whose_items_take_several_steps() -> None:
    """It overtakes: another tenant's, as beside a long prompt."""
    world = World(budget=32, encoder_budget=6, encoder_cache=30)
    items = [(bytes([number]), range(6 * number, 6 * number + 6)) for number in range(4)]
    world.take(image_request(1, 26, *items, tenant="images"))
    world.step()
    world.take(image_request(2, 5, tenant="text"))
    world.take(image_request(3, 8, (b"x", range(6)), tenant="other"))
    assert sorted(columns(world.step())) == [(0, 5), (6, 6)]
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
def test_siblings_and_preempted_sequences_find_vectors_or_encode_again(ahead: bool) -> None:
    world = World(blocks=12, rows=4, encoder_cache=6, ahead=ahead, prefix_cache=False)
    for handle in (1, 2, 3):
        items = (b"a", range(1, 7)), (bytes([handle]), range(9, 14))
        world.take(image_request(handle, 15, *items, n=2, max_tokens=20))
    world.finish()
    assert world.scheduler.num_preemptions


def test_an_abort_between_plan_and_result_leaves_the_vectors() -> None:
    world = World(encoder_cache=8)
    request = world.take(image_request(1, 10, (b"a", range(8))))
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    world.scheduler.abort(request)
    world.scheduler.update(world.worker.collect())
    world.messages.clear()
    world.take(image_request(2, 12, (b"a", range(2, 10))))
    assert not world.step().encode
    world.finish()


def test_counts() -> None:
    world = World(budget=4, encoder_cache=8)
    world.take(image_request(1, 10, (b"a", range(8))))
    world.finish()
    encoder = world.scheduler.encoder
    assert (encoder.num_encoded, encoder.num_encoded_vectors, encoder.num_hits) == (1, 8, 1)
    assert (len(encoder), encoder.num_vectors) == (1, 8)


def test_vectors_of_which_the_model_makes_nan_are_made_again() -> None:
    """For another request with the item, in the plan that forgets them."""
    world = World(encoder_cache=8)
    request = world.take(image_request(1, 10, (b"a", range(8))))
    plan = world.scheduler.schedule(0.0)
    world.worker.submit(plan)
    result = world.worker.collect()._replace(token_ids=[NO_TOKEN])
    assert world.scheduler.update(result) == [request]
    world.messages.clear()
    world.take(image_request(2, 10, (b"a", range(8))))
    again = world.step()
    [item] = again.encode
    assert again.forgotten_media == [item.digest]
    world.finish()


@pytest.mark.parametrize(
    ("items", "chunks"),
    [
        ([range(6, 12)], [(0, 6), (6, 8), (14, 6)]),
        ([range(8)], [(0, 8), (8, 8), (16, 4)]),
        ([range(2, 5), range(5, 8), range(13, 20)], [(0, 8), (8, 5), (13, 7)]),
        ([range(1, 9), range(9, 12)], [(0, 1), (1, 8), (9, 8), (17, 3)]),
    ],
)
def test_a_chunk_takes_what_is_seen_whole_or_ends_before_it(
    items: list[range], chunks: list[tuple[int, int]]
) -> None:
    world = World(budget=8, rows=1, whole_media=True)
    world.take(image_request(1, 20, *[(bytes([i]), positions) for i, positions in enumerate(items)]))
    assert [columns(world.step()) for _ in chunks] == [[chunk] for chunk in chunks]
    world.finish()


def test_what_is_seen_whole_waits_for_room_beside_rows_that_decode() -> None:
    """A prompt that begins with an image begins in a step that has room for all of it, and one that goes on
    with an image keeps room for it when others overtake."""
    world = World(budget=10, rows=4, whole_media=True)
    world.add(1, 2, max_tokens=9, ignore_eos=True)
    world.add(2, 4, max_tokens=9, ignore_eos=True)
    world.take(image_request(3, 30, (b"a", range(7)), (b"b", range(12, 19))))
    assert columns(world.step()) == [(0, 2), (0, 4)]
    world.add(4, 3, max_tokens=9, ignore_eos=True, tenant="u")
    plans = [columns(world.step()) for _ in range(5)]
    assert plans[0] == [(2, 1), (4, 1), (0, 8)]
    assert [[chunk for chunk in plan if chunk[0] == 12] for plan in plans].count([(12, 7)]) == 1
    world.finish()


def test_drafts_of_others_leave_room_for_what_is_seen_whole() -> None:
    """A prompt that begins with an image, for which a step with drafts had no room, is in the next one; then
    drafts have the budget again."""
    world = World(budget=10, rows=3, samples_per_row=8, whole_media=True)
    world.add(1, 2, max_tokens=60, ignore_eos=True)
    world.step()
    world.take(image_request(2, 12, (b"a", range(8)), max_tokens=1))
    plans = [columns(world.step()) for _ in range(3)]
    assert [len(plan) for plan in plans] == [1, 2, 2]
    assert [plan[0][1] for plan in plans] == [8, 2, 8] and plans[1][1] == (0, 8)
    world.finish()


def test_a_cached_prefix_may_end_within_what_is_seen_whole() -> None:
    world = World(block_size=4, budget=12, rows=1, whole_media=True)
    for handle in (1, 2):
        world.take(image_request(handle, [*range(10 + handle)], (b"a", range(2, 10)), tenant="t"))
        if handle == 2:
            assert columns(world.step()) == [(8, 4)]
        world.finish()
    assert world.ledger.cached[2] == 8
