"""A prefix cache over several lives of the engine core, whose worker lives on."""

import random

import pytest

from engine_core.kv_cache.block_pool import BlockPool
from engine_core.kv_cache.cache_changes import KeptChanges
from engine_core.kv_cache.prefix_cache import HASH_BYTES
from engine_core.kv_cache.state_checkpoints import StateCheckpoints
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from pagewire.internal.v1.engine_pb2 import AddRequest
from pagewire.internal.v1.worker_pb2 import KeptCache
from pagewire.internal.v1.worker_pb2 import KeptChanges as Message
from pagewire.ipc.columns import pack_u32, unpack_u32
from tests.engine_core.fake_states import StatefulFakeWorker
from tests.engine_core.fakes import FakeWorker, Ledger, add_request, expected_output, make, namespace
from worker.cache_contents import CONTENT_BYTES, CacheContents

SECRET, SIZE, NUM_BLOCKS, HOST_BLOCKS = b"s" * 32, 4, 24, 8


class Lives:
    """One worker, and one engine core after another. Each is killed at some moment."""

    def __init__(self, seed: int, *, ahead: bool, checkpoints: int = 0) -> None:
        """checkpoints: of the states that rows keep; 0: they keep none."""
        self.dice, self.ahead, self.checkpoints = random.Random(seed), ahead, checkpoints
        self.worker = FakeWorker(NUM_BLOCKS, SIZE, HOST_BLOCKS)
        if checkpoints:
            self.worker = StatefulFakeWorker(NUM_BLOCKS, SIZE, checkpoints)
        self.contents = CacheContents(SECRET)
        self.messages: list[AddRequest] = []
        self.ledger = Ledger()
        self.num_found = 0  # tokens in the caches of all lives but the first

    def make_scheduler(self, **settings: int) -> Scheduler:
        """Of one life."""
        return Scheduler(**settings)

    def begin(self, num_requests: int) -> Scheduler:
        """The next core: what is not finished is resubmitted, with its tokens, and more requests come."""
        scheduler = self.make_scheduler(
            num_blocks=NUM_BLOCKS,
            block_size=SIZE,
            max_num_seqs=4,
            max_num_batched_tokens=10,
            num_host_blocks=0 if self.checkpoints else HOST_BLOCKS,
            state_checkpoints=self.checkpoints,
        )
        self.changes = KeptChanges(lambda: self.contents.apply(self.changes.take_losses()))
        scheduler.prefix_cache.secret = SECRET
        scheduler.track_cache(self.changes, self.contents.hand_over())
        scheduler.check_invariants()
        self.ledger.started.clear()
        self.ledger.cached.clear()
        for message in self.messages:
            if (message.handle, 0) not in self.ledger.ends:
                del message.delivered[:]
                message.delivered.add(token_ids=pack_u32(self.ledger.tokens[message.handle, 0]))
                scheduler.add(make(message))
        for _ in range(num_requests):
            scheduler.add(make(self._new_request()))
        return scheduler

    def _new_request(self) -> AddRequest:
        handle, dice = len(self.messages) + 1, self.dice
        common = [3 + i for i in range(dice.choice((0, 6, 9)))]
        prompt = common + [3 + dice.randrange(900) for _ in range(dice.randint(1, 15))]
        message = add_request(
            handle, prompt, max_tokens=dice.randint(1, 20), tenant=dice.choice(("a", "b")), ignore_eos=True
        )
        self.worker.namespaces[handle] = namespace(message)
        self.messages.append(message)
        return message

    def live(self, scheduler: Scheduler, steps: int) -> None:
        """Steps so many times, and is killed: between two steps, before a plan was sent, or before its result
        was read."""
        for left in range(steps, -1, -1):
            plan = scheduler.schedule(0.0)
            if plan.rows and (left or self.dice.random() < 0.5):
                self.contents.apply(self.changes.take())
                self.worker.submit(plan)
            if not left:
                break
            if scheduler.in_flight and (len(scheduler.in_flight) > self.ahead or not plan.rows):
                scheduler.update(self.worker.collect())
                if self.dice.random() < 0.05:
                    scheduler.reset_cache()
                scheduler.check_invariants()
            for _, message in encode_outputs(scheduler.take_outputs(), 1, scheduler.step):
                self.ledger.take(message)
            if not plan.rows and not scheduler.requests and not scheduler.in_flight:
                self.contents.apply(self.changes.take())
                break
        self.worker.rows.clear()
        if isinstance(self.worker, StatefulFakeWorker):
            self.worker.states.clear()
        self.worker.host_blocks.clear()
        self.worker._results.clear()


@pytest.mark.parametrize("checkpoints", [0, 1, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_outputs_over_many_lives_are_exact(ahead: bool, checkpoints: int) -> None:
    """The fake worker checks that each row reads its own history, in each block that it shares, also with the
    rows of earlier lives; and that it begins with its own state."""
    num_found = 0
    for seed in range(10 if checkpoints else 40):
        lives = Lives(seed, ahead=ahead, checkpoints=checkpoints)
        for life in range(6):
            scheduler = lives.begin(lives.dice.randint(0, 4))
            lives.live(scheduler, lives.dice.randint(0, 25))
            num_found += scheduler.prefix_cache.hit_rate.num_found if life else 0
        lives.live(lives.begin(0), 10_000)
        for message in lives.messages:
            key = message.handle, 0
            del message.delivered[:]
            assert (lives.ledger.tokens[key], lives.ledger.ends[key]) == expected_output(message, 0)
    assert num_found > (50 if checkpoints else 1_000)


@pytest.mark.parametrize("prompt", [16, 17, 21])
def test_a_resumed_request_finds_its_full_blocks(prompt: int) -> None:
    """All of them but the one that a step had just filled when the core died, and never its last token."""
    lives = Lives(0, ahead=False)
    scheduler = lives.begin(0)
    message = add_request(1, prompt, max_tokens=20, ignore_eos=True)
    lives.messages.append(message)
    lives.worker.namespaces[1] = namespace(message)
    scheduler.add(make(message))
    lives.live(scheduler, 12)
    num_tokens = prompt + len(lives.ledger.tokens[1, 0])
    assert num_tokens > prompt + 5
    scheduler = lives.begin(0)
    scheduler.schedule(0.0)
    found = scheduler.prefix_cache.hit_rate.num_found
    assert found % SIZE == 0 and 0 < num_tokens - 1 - found < 2 * SIZE


@pytest.mark.parametrize(("prompt", "state"), [(8, 4), (16, 12), (17, 16), (21, 20)])
def test_a_resumed_request_begins_with_the_last_state_of_its_prompt(prompt: int, state: int) -> None:
    """Outputs have blocks and no states: they are computed again."""
    lives = Lives(0, ahead=False, checkpoints=2)
    scheduler = lives.begin(0)
    message = add_request(1, prompt, max_tokens=20, ignore_eos=True)
    lives.messages.append(message)
    lives.worker.namespaces[1] = namespace(message)
    scheduler.add(make(message))
    lives.live(scheduler, 9)
    assert len(lives.ledger.tokens[1, 0]) > 5
    scheduler = lives.begin(0)
    plan = scheduler.schedule(0.0)
    assert plan.starts == [state] and len(plan.restore_rows) == 1
    lives.worker.submit(plan)
    scheduler.update(lives.worker.collect())


def test_a_state_that_a_plan_saves_is_not_told_without_the_plan() -> None:
    lives = Lives(0, ahead=False, checkpoints=1)
    scheduler = lives.begin(0)
    scheduler.add(make(add_request(1, 9)))
    assert scheduler.schedule(0.0).save_positions == [8]
    scheduler.pool.forget([])  # losses are told without a plan
    assert not lives.contents.hand_over().checkpoints
    lives.contents.apply(lives.changes.take())
    kept = lives.contents.hand_over()
    assert unpack_u32(kept.checkpoints) == [0] and kept.checkpoint_contents == kept.contents[-HASH_BYTES:]


def test_states_that_are_forgotten_are_told_at_once() -> None:
    """By a reset of the cache, and by distrust of a request."""
    for forget in ("reset", "distrust"):
        lives = Lives(0, ahead=False, checkpoints=2)
        scheduler = lives.begin(0)
        message = add_request(1, 9, max_tokens=5, ignore_eos=True)
        lives.worker.namespaces[1] = namespace(message)
        scheduler.add(request := make(message))
        plan = scheduler.schedule(0.0)
        lives.contents.apply(lives.changes.take())
        lives.worker.submit(plan)
        sequence = request.sequences[0]
        if forget == "reset":
            scheduler.reset_cache()
        else:
            scheduler.prefix_cache.distrust(sequence)
        assert not scheduler.prefix_cache.num_checkpoints
        kept = lives.contents.hand_over()
        assert not kept.blocks and not kept.checkpoints


def test_what_a_plan_fills_is_not_told_without_the_plan() -> None:
    """A core that is killed before it sends the plan leaves no block that was never computed."""
    lives = Lives(0, ahead=False)
    scheduler = lives.begin(2)
    assert scheduler.schedule(0.0).rows and scheduler.prefix_cache.num_blocks
    scheduler.pool.forget([])  # losses are told without a plan
    assert not unpack_u32(lives.contents.hand_over().blocks)


def test_losses_are_told_at_once() -> None:
    told: list[Message] = []
    pool = BlockPool(4)
    changes = KeptChanges(lambda: told.append(changes.take_losses()))
    pool.changes = changes.blocks
    first, second, third = pool.allocate(3)
    pool.keep(first, b"a" * HASH_BYTES)
    pool.keep(second, b"b" * HASH_BYTES)
    assert unpack_u32(changes.take().kept_blocks) == [first, second] and not changes
    pool.keep(third, b"c" * HASH_BYTES)
    pool.forget([first])
    assert unpack_u32(told.pop().forgotten_blocks) == [first]
    assert changes, "what is cached is told with the next plan"
    pool.forget_all()
    assert told.pop().forgets_all and not changes


def test_a_worker_takes_in_what_it_is_told() -> None:
    contents = CacheContents(SECRET)
    contents.apply(Message(kept_blocks=pack_u32([3, 5]), kept_contents=b"x" * 16 + b"y" * 16))
    contents.apply(
        Message(forgotten_blocks=pack_u32([3, 7]), kept_blocks=pack_u32([1]), kept_contents=b"z" * 16)
    )
    kept = contents.hand_over()
    assert (kept.secret, unpack_u32(kept.blocks), kept.contents) == (SECRET, [5, 1], b"y" * 16 + b"z" * 16)
    assert not contents.hand_over().blocks, "the next core says what it goes on with"
    contents.apply(Message(kept_blocks=pack_u32([3]), kept_contents=b"x" * 16))
    contents.apply(Message(forgets_all=True, kept_blocks=pack_u32([4]), kept_contents=b"v" * 16))
    assert unpack_u32(contents.hand_over().blocks) == [4]
    with pytest.raises(ValueError, match="contents of 2 places"):
        contents.apply(Message(kept_blocks=pack_u32([3, 4]), kept_contents=b"x" * 16))
    assert CONTENT_BYTES == HASH_BYTES


def test_a_worker_takes_in_which_checkpoints_are_saved() -> None:
    contents = CacheContents(SECRET)
    contents.apply(Message(kept_checkpoints=pack_u32([0, 1]), kept_checkpoint_contents=b"x" * 16 + b"y" * 16))
    contents.apply(Message(kept_blocks=pack_u32([0]), kept_contents=b"w" * 16, forgets_all=True))
    contents.apply(
        Message(
            forgotten_checkpoints=pack_u32([0]),
            kept_checkpoints=pack_u32([0]),
            kept_checkpoint_contents=b"z" * 16,
        )
    )
    kept = contents.hand_over()
    assert (unpack_u32(kept.blocks), unpack_u32(kept.checkpoints)) == ([0], [1, 0])
    assert kept.checkpoint_contents == b"y" * 16 + b"z" * 16
    assert not contents.hand_over().checkpoints
    contents.apply(Message(kept_checkpoints=pack_u32([3]), kept_checkpoint_contents=b"x" * 16))
    contents.apply(Message(forgets_all_checkpoints=True))
    assert not contents.hand_over().checkpoints


def scheduler_of(**settings: int) -> Scheduler:
    return Scheduler(num_blocks=4, block_size=SIZE, max_num_seqs=4, max_num_batched_tokens=10, **settings)


@pytest.mark.parametrize(
    ("blocks", "contents"),
    [([0, 4], b"x" * 16 + b"y" * 16), ([0, 1], b"x" * 32), ([0], b"x" * 15), ([2, 2], b"x" * 16 + b"y" * 16)],
    ids=["out-of-range", "one-content-twice", "cut-off", "one-block-twice"],
)
def test_a_cache_that_makes_no_sense_is_not_continued(
    blocks: list[int], contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, changes = scheduler_of(), KeptChanges()
    kept = KeptCache(secret=SECRET, blocks=pack_u32(blocks), contents=contents)
    scheduler.prefix_cache.track(changes, kept)
    assert "is lost" in caplog.text
    scheduler.check_invariants()
    assert not scheduler.prefix_cache.num_blocks and not changes and scheduler.pool.num_free == 4


@pytest.mark.parametrize(
    ("slots", "contents"),
    [([0, 2], b"x" * 16 + b"y" * 16), ([0, 1], b"x" * 32), ([0], b"x" * 15), ([1, 1], b"x" * 16 + b"y" * 16)],
    ids=["out-of-range", "one-content-twice", "cut-off", "one-slot-twice"],
)
def test_states_that_make_no_sense_are_not_continued(
    slots: list[int], contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor are the blocks."""
    scheduler, changes = scheduler_of(state_checkpoints=2), KeptChanges()
    kept = KeptCache(
        secret=SECRET,
        blocks=pack_u32([1]),
        contents=b"w" * 16,
        checkpoints=pack_u32(slots),
        checkpoint_contents=contents,
    )
    scheduler.prefix_cache.track(changes, kept)
    assert "is lost" in caplog.text
    scheduler.prefix_cache._checkpoints.check_invariants()  # type: ignore[union-attr]
    assert not scheduler.prefix_cache.num_blocks and not scheduler.prefix_cache.num_checkpoints
    assert not changes and scheduler.pool.num_free == 4


def test_adopted_states_are_written_over_in_the_order_of_their_saves() -> None:
    checkpoints = StateCheckpoints(3, SIZE)
    checkpoints.adopt({2: b"a" * 16, 0: b"b" * 16})
    checkpoints.check_invariants()
    assert checkpoints.longest([b"", b"b" * 16, b"c" * 16], 2) == 1
    plan, sequence = Plan(), make(add_request(1, 20)).sequences[0]
    sequence.hashes = [bytes([i]) * 16 for i in range(5)]
    sequence.set_computed(16)
    checkpoints.save(sequence, 0, [1, 2, 3], plan)
    assert plan.save_checkpoints == [1, 2, 0]
    checkpoints.check_invariants()


def test_a_core_without_a_cache_keeps_nothing() -> None:
    scheduler, changes = scheduler_of(state_checkpoints=2, prefix_cache=False), KeptChanges()
    kept = KeptCache(secret=SECRET, blocks=pack_u32([1]), contents=b"x" * 16)
    scheduler.prefix_cache.track(changes, kept)
    assert not scheduler.prefix_cache.num_blocks and scheduler.pool.changes is None
