"""What the log says of the requests of a worker that died."""

from engine_core.last_steps import describe_last_steps
from tests.engine_core.world import World


def test_the_requests_that_ran_are_named() -> None:
    world = World(rows=4, budget=8)
    assert describe_last_steps(world.scheduler) == ""
    world.add(1, 3, max_tokens=9, tenant="alice", request_id="alice/chat-1")
    world.add(2, 20, max_tokens=9, request_id="a] [request_id=b")
    world.add(3, 30, max_tokens=9, request_id="later")
    world.step()
    assert describe_last_steps(world.scheduler) == (
        "2 requests were in the last steps: [request_id=chat-1 tenant=alice] [request_id='a] [request_id=b']"
    )
    world.finish()


def test_not_all_of_many_are_named() -> None:
    world = World(rows=20, budget=64, blocks=128)
    for handle in range(1, 21):
        world.add(handle, 2, max_tokens=9)
    world.step()
    said = describe_last_steps(world.scheduler)
    assert said.startswith("20 requests") and said.endswith(" and 4 more") and said.count("request_id=") == 16
    world.finish()
