"""Groups of sequences: what the scheduler asks of parallel sampling and of a beam search."""

from engine_core.request import Status
from engine_core.scheduler.states.beam_group import BeamGroup
from engine_core.scheduler.states.sequence_group import SequenceGroup
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.world import World


def group_of(world: World, handle: int) -> SequenceGroup:
    request = world.scheduler.requests.by_handle(b"frontend", handle)
    assert request is not None
    return world.scheduler.states.groups[request]


def test_each_request_has_a_group_until_it_ends():
    world = World()
    world.add(1, n=2)
    world.add(2, beams=beam_search(3))
    assert type(group_of(world, 1)) is SequenceGroup
    assert isinstance(group_of(world, 2), BeamGroup)
    world.finish()
    assert not world.scheduler.states.groups and not world.scheduler.states.leaders


def test_parallel_sequences_run_by_themselves():
    world = World()
    request = world.add(1, n=3, ignore_eos=True, max_tokens=9)
    group = group_of(world, 1)
    world.step(2)
    assert all(sequence.status is Status.RUNNING for sequence in request.sequences)
    assert not group.followers and not world.scheduler.states.leaders
    assert list(group.writers(request.sequences[1])) == [request.sequences[1]]
    assert group.results() is None and not group.is_finished()
    assert group.ended_by({1}) == {1} and [*group.ended_by(())] == [0, 1, 2]
    world.finish()


def test_beams_follow_their_leader():
    world = World()
    request = world.add(1, n=2, beams=beam_search(3), ignore_eos=True, max_tokens=9)
    group = group_of(world, 1)
    world.step()
    assert group.followers == request.sequences[1:]
    world.step()
    assert world.scheduler.running == request.sequences[:1]
    assert {*group.writers(request.sequences[0])} == {*request.sequences}
    results = group.results()
    assert results is not None and [len(output) for output in results] == [2, 2]
    assert [*group.ended_by({0})] == [] and [*group.ended_by({0, 1})] == [0, 1, 2]
    world.finish()
