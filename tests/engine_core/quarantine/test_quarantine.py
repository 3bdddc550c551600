"""Suspects among other requests: which runs when, and what the journal has."""

from engine_core.quarantine.blame import STRIKES
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.quarantine.quarantine import PATIENCE
from engine_core.request import Request, Status
from tests.engine_core.world import World

ENDLESS = {"max_tokens": 40, "ignore_eos": True}


class Lives:
    """One world after another, with a journal that outlives them."""

    def __init__(self, **options: object) -> None:
        self.memory = bytearray()
        self.options = options
        self.world = self.begin()

    def begin(self, *, killed: bool = False) -> World:
        """The next life, after a death in the middle of the last one. killed: by SIGKILL."""
        self.world = World(**self.options)  # type: ignore[arg-type]
        self.memory = next_journal(bytes(self.memory), self.world.scheduler.num_rows, killed=killed)
        self.world.scheduler.open(CrashJournal(self.memory))
        return self.world


def running(world: World) -> list[int]:
    """Handles of running requests."""
    return sorted({sequence.request.handle for sequence in world.scheduler.running})


def come(world: World, count: int, **options: object) -> list[Request]:
    return [world.add(handle, 3, **ENDLESS | options) for handle in range(1, 1 + count)]


def test_suspects_run_group_by_group_and_then_all_requests():
    lives = Lives(rows=20, blocks=400)
    come(lives.world, 16)
    lives.world.step(3)
    world = lives.begin()
    assert world.scheduler.quarantine.num_suspects == 16
    come(world, 17)
    seen = []
    while len(running(world)) < 17:
        world.step()
        seen += [number for number in [len(running(world))] if number not in seen]
    assert seen == [2, 4, 6, 8, 10, 12, 14, 16, 17]
    assert not world.scheduler.quarantine.num_suspects
    world.finish()


def test_after_a_sigkill_all_go_on_with_the_first_steps():
    steps = {}
    for killed in (False, True):
        lives = Lives(rows=64, blocks=800, budget=512)
        come(lives.world, 64)
        lives.world.step(3)
        world = lives.begin(killed=killed)
        requests = come(world, 64)
        while not all(request.sequences[0].output for request in requests):
            world.step()
        steps[killed] = world.scheduler.step
        world.finish()
        assert not world.scheduler.quarantine.num_suspects
    assert steps[True] == 1 < 8 <= steps[False]


def test_after_a_sigkill_no_request_waits_for_another():
    """Streams that come late after a kill, as through a frontend that was killed as well, were isolated in
    groups of one to three, for seconds on a busy machine, and all others waited."""
    lives = Lives(rows=8, blocks=400)
    come(lives.world, 3)
    lives.world.step(3)
    world = lives.begin(killed=True)
    world.add(9, 3, **ENDLESS)
    world.step()
    assert running(world) == [9] and world.scheduler.quarantine.num_suspects == 3
    for handle in (1, 2, 3):
        world.add(handle, 3, **ENDLESS)
        world.step()
        world.scheduler.check_invariants()
    assert running(world) == [1, 2, 3, 9]
    suspects = [world.scheduler.quarantine.num_suspects]
    while suspects[-1]:
        world.step()
        suspects.append(world.scheduler.quarantine.num_suspects)
    assert suspects == sorted(suspects, reverse=True) and {3, 2, 1} <= {*suspects}, "each by itself"
    world.finish()


def test_sigkills_in_a_row_leave_few_groups():
    """Each comes before a suspect is cleared. With eighths there were 15 groups: in a run of kills on a busy
    machine 40 of 80 streams got nothing for 50 s, in three lives of the core."""
    lives = Lives(rows=64, blocks=800, budget=512)
    come(lives.world, 64)
    lives.world.step(3)
    for _ in range(3):
        world = lives.begin(killed=True)
        come(world, 64)
        world.step()
    world = lives.begin(killed=True)
    requests = come(world, 64)
    while not all(request.sequences[0].output for request in requests):
        world.step()
    assert world.scheduler.step == 4, "four groups of 16"
    world.finish()


def test_streams_take_turns_between_kills():
    """A half of them runs in one life, the other half in the next one: the last to run are the last again."""
    lives, ran = Lives(rows=8), list[set[int]]()
    come(lives.world, 8)
    lives.world.step()
    for _ in range(5):
        world = lives.begin(killed=True)
        come(world, 8)
        world.step()
        ran.append({*running(world)})
    assert [len(each) for each in ran] == [8, 4, 4, 2, 2]
    assert ran[1] | ran[2] == ran[0] and ran[3] | ran[4] == ran[1]


def test_no_request_begins_before_the_suspects_but_not_for_long():
    lives = Lives()
    come(lives.world, 2)
    lives.world.step()
    world = lives.begin()
    world.add(9, 3, **ENDLESS)
    for now in (0.0, PATIENCE * 0.9):
        assert not world.scheduler.schedule(now).rows
        assert world.scheduler.idle_sleep
        world.scheduler.check_invariants()
    world.step(now=PATIENCE)
    assert running(world) == [9] and not world.scheduler.idle_sleep
    come(world, 2)
    world.step(now=PATIENCE)  # they are late, and suspects all the same
    assert running(world) == [1, 9]
    world.finish()


def test_a_death_alone_after_death_alone():
    lives = Lives()
    come(lives.world, 3)
    lives.world.step()
    for strikes in range(STRIKES):
        world = lives.begin()
        assert not world.scheduler.refuses(come(world, 3)[0].key)
        assert lives.world.scheduler.quarantine.num_suspects == 3
        world.step()
        assert running(world) == [1], strikes
    world = lives.begin()
    first, *others = [World().add(handle, 3) for handle in (1, 2, 3)]
    assert world.scheduler.refuses(first.key)
    assert not world.scheduler.refuses(first.key)  # once: then it may run again, alone
    assert not any(world.scheduler.refuses(other.key) for other in others)


def test_a_request_that_makes_progress_is_not_quarantined():
    """However often the engine dies with it alone: it is killed from outside."""
    lives = Lives(blocks=400)
    delivered: list[int] = []
    for _ in range(15):
        world = lives.begin()
        (request,) = come(world, 1, delivered={0: delivered}, max_tokens=60)
        assert not world.scheduler.refuses(request.key)
        world.step(4)
        delivered = list(request.sequences[0].output[:-1])
    assert len(delivered) > 30


def test_a_death_in_a_chunk_of_a_prompt_is_blamed_on_that_chunk():
    lives = Lives(budget=8)
    lives.world.add(1, 60, max_tokens=2)
    lives.world.step(5)
    (suspect,) = lives.begin().scheduler.quarantine._journal.suspects.values()
    assert suspect.span == (24, 40)
    lives.world.add(1, 60, max_tokens=2)
    lives.world.step(7)
    (suspect,) = lives.begin().scheduler.quarantine._journal.suspects.values()
    assert suspect.span == (40, 56) and suspect.strikes == 1


def test_siblings_count_as_one():
    """A request with n sequences is past its death when each of them has a token more."""
    lives = Lives()
    lives.world.add(1, 3, n=3, **ENDLESS)
    lives.world.step(4)
    world = lives.begin()
    request = world.add(1, 3, n=3, **ENDLESS)
    other = world.add(2, 3, **ENDLESS)
    while other.sequences[0].status is Status.WAITING:
        world.step()
        world.scheduler.check_invariants()
    assert all(len(sequence.output) > 3 for sequence in request.sequences)
    world.finish()


def test_a_suspect_that_is_aborted_stays_one():
    lives = Lives()
    come(lives.world, 2)
    lives.world.step()
    world = lives.begin()
    first, second = come(world, 2)
    world.step()
    world.scheduler.abort(first)
    world.step()
    assert running(world) == [2]
    assert world.scheduler.quarantine.num_suspects == 2
    world.scheduler.abort(second)
    world.add(3, 3, **ENDLESS)
    world.step(now=9.0)
    assert running(world) == [3]


def test_a_request_that_has_finished_is_no_suspect():
    """The engine is killed from outside while it is idle, or runs other requests."""
    lives = Lives()
    lives.world.add(1, 3, max_tokens=2, ignore_eos=True)
    lives.world.finish()
    assert not lives.begin().scheduler.quarantine.num_suspects
    lives.world.add(1, 3, max_tokens=2, ignore_eos=True)
    lives.world.add(2, 3, **ENDLESS)
    lives.world.step(3)
    assert lives.begin().scheduler.quarantine.num_suspects == 1


def test_a_preempted_request_is_a_suspect_until_its_last_step_is_over():
    lives = Lives(blocks=6, ahead=True)
    come(lives.world, 3)
    scheduler = lives.world.scheduler
    while not scheduler.num_preemptions:
        lives.world.step()
        scheduler.check_invariants()
    members = len(scheduler.quarantine._rows)
    assert members == len(running(lives.world)) < 3
    assert lives.begin().scheduler.quarantine.num_suspects == members
