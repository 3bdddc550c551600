"""Adapters that a step of the worker has no room for wait, each for its turn; others pass them."""

import pytest

from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.quarantine.quarantine import PATIENCE
from engine_core.queue.base import FIRST_COME
from engine_core.scheduler.outputs.wait_causes import Cause
from engine_core.scheduler.planning.step_planner import MAX_PREEMPTIONS
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.world import World

TURN = 6


def make_world(slots: int = 1, turn: int = TURN, **options: object) -> World:
    """The fake worker refuses a step with more adapters than slots."""
    return World(rows=8, blocks=256, max_adapters=slots, adapter_turn=turn, **options)  # type: ignore[arg-type]


def add(world: World, adapters: str, max_tokens: int = 40, **options: object) -> None:
    """Adds a request for each letter: of the adapter of that name; "-": of none."""
    for name in adapters:
        handle = len(world.messages) + 1
        adapter = name.strip("-")
        world.add(handle, 5, max_tokens=max_tokens, ignore_eos=True, adapter=adapter, **options)  # type: ignore[arg-type]


def running(world: World) -> str:
    """Adapters of the running sequences, sorted."""
    found = (sequence.request.parameters.adapter for sequence in world.scheduler.running)
    return "".join(sorted("-" if adapter is None else adapter.name for adapter in found))


def turns(world: World, steps: int) -> list[str]:
    """The adapters that run in so many steps, without repetitions; stops where nothing is left."""
    seen: list[str] = []
    for _ in range(steps):
        if not world.scheduler.requests:
            break
        world.step()
        adapters = "".join(sorted(set(running(world))))
        if not seen or adapters != seen[-1]:
            seen.append(adapters)
    return seen


@pytest.mark.parametrize("policy", ["fair", FIRST_COME])
def test_those_without_an_adapter_pass(policy: str) -> None:
    world = make_world(policy=policy)
    add(world, "ab-b-")
    world.step()
    assert running(world) == "--a"
    world.finish()


def test_virtual_tokens_need_no_slot() -> None:
    """They are input of the step, as other tokens are."""
    world = make_world()
    for handle, name in enumerate("abcd", start=1):
        virtual = 2 * (name in "bc")
        world.add(handle, 5, max_tokens=40, ignore_eos=True, adapter=name, virtual_tokens=virtual)
    world.step()
    assert running(world) == "abc"
    world.finish()


def test_any_number_without_a_bound() -> None:
    world = make_world(slots=0)
    add(world, "abcdefg-")
    world.step()
    assert running(world) == "-abcdefg"
    world.finish()


def test_the_slot_that_is_free_first_takes_no_more() -> None:
    """Of two adapters that run, b has less left: those of a still begin, another of b does not. In the first
    half of the turn both take more."""
    world = make_world(slots=2, turn=20)
    add(world, "a")
    add(world, "b", max_tokens=18)
    world.step()
    add(world, "c")
    add(world, "b", max_tokens=16)
    world.step(10)
    assert running(world) == "abb"
    add(world, "ba")
    world.step()
    assert running(world) == "aabb"
    world.step(7)
    assert running(world) == "aac" and not world.scheduler.num_preemptions
    world.finish()


def test_one_that_has_had_its_turn_is_preempted() -> None:
    world = make_world()
    add(world, "aab")
    world.step(TURN)
    assert running(world) == "aa"
    world.step(2)
    assert running(world) == "b" and world.scheduler.num_preemptions == 2
    world.finish()


def test_an_adapter_alone_keeps_its_slot() -> None:
    world = make_world()
    add(world, "aa-")
    world.step(30)
    assert running(world) == "-aa" and not world.scheduler.num_preemptions
    world.finish()


@pytest.mark.parametrize("policy", ["fair", FIRST_COME])
def test_adapters_of_a_tenant_take_turns(policy: str) -> None:
    """Those that were preempted are at the head of their tenant's line, and keep no other out."""
    world = make_world(policy=policy)
    add(world, "aabbc")
    assert turns(world, 5 * (TURN + 1) + 2) == ["a", "b", "c", "a", "b", "c"]
    world.finish()


def test_a_flood_of_adapters_leaves_another_tenant_its_share() -> None:
    world = make_world(slots=2)
    add(world, "abcdefgh" * 4, max_tokens=20, tenant="many")
    world.step(2)
    add(world, "z", max_tokens=20, tenant="one")
    seen = turns(world, 3 * TURN)
    assert any("z" in each for each in seen)
    world.finish()


def test_new_requests_for_a_slot_do_not_keep_it() -> None:
    """A stream of requests for one adapter does not starve another, of the same tenant or of another one."""
    world = make_world()
    add(world, "aaa", max_tokens=3)
    add(world, "b", max_tokens=3)
    for _ in range(TURN + 3):
        add(world, "a", max_tokens=3)
        world.step()
    began = [each.request_id for each in world.scheduler.requests if each.scheduled]
    assert world.ledger.ends.get((4, 0)) is not None or "request-4" in began
    world.finish()


def test_a_turn_lasts_until_there_is_a_token() -> None:
    """Otherwise two prompts that take longer than a turn would never be computed."""
    world = make_world(turn=2, budget=8, prefix_cache=False)
    for handle, name in enumerate("ab", start=1):
        world.add(handle, 40, max_tokens=5, ignore_eos=True, adapter=name)
    world.finish()
    assert world.scheduler.num_preemptions


def test_a_turn_lasts_until_a_beam_search_has_ended() -> None:
    """Otherwise two searches that are longer than a turn would start again from their prompts for ever."""
    world = make_world()
    add(world, "ab", max_tokens=3 * TURN, beams=beam_search(2), n=2)
    assert turns(world, 20 * TURN)[:2] == ["a", "b"]
    assert not world.scheduler.requests and not world.scheduler.num_preemptions


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_suspect_gets_its_slot(first: str) -> None:
    """While it waits no other request begins. It is kept out neither by an adapter that waited before it,
    nor by the second half of a turn of its own adapter."""
    memory = bytearray()
    for _ in range(2):
        world = make_world()
        memory = next_journal(bytes(memory), world.scheduler.num_rows)
        world.scheduler.open(CrashJournal(memory))
        if not world.scheduler.quarantine.num_suspects:
            world.add(9, 5, adapter="b")
            world.step()
    world.scheduler.quarantine.review(0.0)
    add(world, first + "c", max_tokens=100)
    world.step(TURN // 2 + 2, now=PATIENCE)
    suspect = world.add(9, 5, max_tokens=40, ignore_eos=True, adapter="b")
    add(world, "-")
    assert world.scheduler.quarantine.isolates
    for _ in range(1 if first == "b" else TURN):
        if not suspect.scheduled:
            assert running(world) == first
            world.step(now=PATIENCE)
    assert running(world) == ("bb" if first == "b" else "b")
    world.step(2, now=PATIENCE)
    assert "-" in running(world) and not world.scheduler.quarantine.num_suspects
    world.finish()


def test_ends_of_turns_spare_no_sequence_later() -> None:
    """It gives up its row to a better class, however many turns it has had."""
    world = World(rows=8, blocks=256, max_adapters=1, adapter_turn=TURN, preempt_rows=True)
    add(world, "ab", max_tokens=50, priority=1)
    world.step((2 * MAX_PREEMPTIONS + 1) * (TURN + 1))
    assert world.scheduler.num_preemptions >= 2 * MAX_PREEMPTIONS and running(world) in ("a", "b")
    add(world, "-" * 8)
    world.step(3)
    assert running(world) == "-" * 8
    world.finish()


def test_ends_of_turns_ask_for_no_more_free_blocks() -> None:
    world = make_world()
    add(world, "ab----", max_tokens=60)
    world.step(4 * (TURN + 1))
    assert world.scheduler.num_preemptions >= 3
    assert not any(each.num_preemptions for request in world.scheduler.requests for each in request.sequences)
    world.finish()


@pytest.mark.parametrize(("priority", "taken"), [(0, True), (1, False), (-1, True)])
def test_a_worse_class_ends_no_turn(priority: int, taken: bool) -> None:
    world = make_world()
    add(world, "a")
    world.step()
    add(world, "b", priority=priority)
    world.step(TURN + 2)
    assert running(world) == ("b" if taken else "a")
    world.finish()


def test_what_waits_has_a_cause() -> None:
    world = make_world(turn=1000)
    add(world, "ab")
    world.step()
    assert world.scheduler.states.wait_causes.cause is Cause.ADAPTER
    add(world, "-" * 8)
    world.step()
    assert world.scheduler.states.wait_causes.cause is Cause.ROWS
    world.finish()


def test_one_that_waits_for_a_slot_ends_like_others() -> None:
    world = make_world(turn=1000)
    add(world, "abc")
    world.step(2)
    second = next(each for each in world.scheduler.requests if each.handle == 2)
    world.scheduler.abort(second)
    del world.messages[2]
    assert turns(world, 200)[-1] == "c"
    world.finish()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 64])
@pytest.mark.parametrize("share_rows", [False, True])
def test_outputs_are_those_of_requests_alone(ahead: bool, host_blocks: int, share_rows: bool) -> None:
    """Whatever is preempted, with two plans in flight and with copies: finish() compares every token."""
    world = make_world(2, 3, ahead=ahead, host_blocks=host_blocks, share_rows=share_rows)
    for number in range(40):
        add(world, "abcde-"[number % 6], max_tokens=9, n=1 + number % 3, tenant="xyz"[number % 3])
        if number % 3 == 0 and not ahead:
            world.step()
    world.finish()
    assert world.scheduler.num_preemptions
