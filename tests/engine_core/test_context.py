"""The load that the core reports, compared with its worker's state and its messages, step by step."""

from collections.abc import Iterator

import pytest

from pagewire.internal.v1.engine_pb2 import AddRequest, GetLoad, Load, Utility
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

BLOCKS, SIZE = 24, 4


class Witness:
    """The figures as an observer of plans and outputs knows them, without looking at the scheduler."""

    def __init__(self, **settings: bool | int) -> None:
        self.house = House(blocks=BLOCKS, rows=7, budget=20, **settings)  # type: ignore[arg-type]
        self.messages: dict[int, AddRequest] = {}

    def put(self, handle: int, n: int) -> None:
        message = add_request(handle, 3 + 4 * handle % 19, n=n, max_tokens=14, stop_token_ids=range(100, 140))
        self.messages[handle] = message
        self.house.worker.namespaces[handle] = ("", "")
        self.house.put(message)

    def load(self) -> Load:
        """Requests the load, which takes a step; the answer describes the state before it."""
        self.house.put(Utility(call_id=1, get_load=GetLoad()))
        return self.house.step()[0][1].utility_result.load

    def look(self) -> dict[str, int]:
        """The figures as they must be now."""
        ledger = self.house.outputs_of(b"a")
        sequences = {
            (handle, index)
            for handle, message in self.messages.items()
            for index in range(message.sampling.n)
            if (handle, index) not in ledger.ends
        }
        tables = {
            (row.parameters.sampling.seed, row.index): row.table for row in self.house.worker.rows.values()
        }
        running = {handle for handle, index in sequences & tables.keys()}
        held = {block for name in sequences & tables.keys() for block in tables[name]}
        waiting = 0
        for handle in {handle for handle, _ in sequences}:
            prompt = len(self.messages[handle].prompt_token_ids) // 4
            if handle not in ledger.started:
                waiting += prompt
            elif handle not in running or len(ledger.tokens[handle, 0]) > 0:
                away = (name for name in sequences - tables.keys() if name[0] == handle)
                waiting += sum(prompt + len(ledger.tokens[name]) for name in away)
        return {
            "running_requests": len(running),
            "waiting_requests": len({handle for handle, _ in sequences} - running),
            "waiting_uncached_tokens": waiting,
            "kv_used_tokens": SIZE * len(held),
            "kv_total_tokens": SIZE * BLOCKS,
        }

    def preemptions(self) -> int:
        """At the end: how often a sequence began again."""
        plans = self.house.worker.plans
        begun = sum(len(plan.new_rows) + len(plan.forks) for plan in plans)
        return begun - sum(message.sampling.n for message in self.messages.values())

    def hit_rate(self) -> float:
        """Tokens found over tokens of all rows that began."""
        asked = found = 0
        for plan in self.house.worker.plans:
            starts = dict(zip(plan.rows, plan.starts, strict=True))
            asked += sum(len(new.token_ids) for new in plan.new_rows)
            found += sum(starts[new.row] for new in plan.new_rows)
        return found / asked


@pytest.fixture
def witness(request: pytest.FixtureRequest) -> Iterator[Witness]:
    made = Witness(**request.param)
    yield made
    made.house.inbox.close()


def figures(load: Load) -> dict[str, int]:
    names = (
        "running_requests",
        "waiting_requests",
        "waiting_uncached_tokens",
        "kv_used_tokens",
        "kv_total_tokens",
    )
    return {name: getattr(load.load, name) for name in names}


def crowd(witness: Witness, most: int) -> Iterator[Load]:
    """Requests of one to three sequences arrive one by one; yields loads until all have ended."""
    handle = 0
    while handle < 20 or witness.house.scheduler.requests or witness.house.inbox:
        if handle < 20:
            handle += 1
            witness.put(handle, n=1 + handle % most)
        yield witness.load()


@pytest.mark.parametrize("witness", [{"prefix_cache": False}], indirect=True)
def test_every_figure_is_true_at_every_step(witness: Witness) -> None:
    """More than the pool holds: sequences are preempted, prompts are cut, siblings wait for their leader."""
    before = 0
    for handle in range(1, 21):
        witness.put(handle, n=1 + handle % 3)
        witness.house.step()
        while witness.house.scheduler.requests and (handle == 20 or len(witness.house.worker.plans) % 3):
            expected = witness.look()
            load = witness.load()
            assert figures(load) == expected
            assert load.load.preemptions >= before
            before = load.load.preemptions
    assert before > 2
    assert before == witness.preemptions()
    assert witness.house.scheduler.prefix_cache.hit_rate.ratio == 0.0


@pytest.mark.parametrize(
    "witness",
    [{}, {"ahead": True}, {"host_blocks": 12, "ahead": True}, {"host_blocks": 40}],
    indirect=True,
    ids=str,
)
def test_the_figures_at_the_end(witness: Witness) -> None:
    """With the prefix cache, one step ahead and with a swap space: nothing runs, waits or is held, and the
    counters are what the plans say."""
    loads = list(crowd(witness, most=3))
    last = witness.load().load
    assert (last.running_requests, last.waiting_requests) == (0, 0)
    assert (last.waiting_uncached_tokens, last.kv_used_tokens) == (0, 0)
    assert last.preemptions == witness.preemptions() > 2
    if not witness.house.scheduler.swap.num_blocks:
        assert last.prefix_cache_hit_rate == witness.hit_rate()
    for load in loads:
        assert load.load.kv_used_tokens <= load.load.kv_total_tokens == SIZE * BLOCKS
        assert load.kv_empty_slots <= load.kv_sampled_slots
    assert loads[-1].kv_empty_slots > 0


def test_drafted_tokens_are_summed_over_what_drafts() -> None:
    witness = Witness()
    drafts = witness.house.core.counters.draft_tokens
    drafts["lookup", "accepted"], drafts["lookup", "refused"], drafts["grammar", "accepted"] = 3, 4, 5
    load = witness.load().load
    assert (load.drafted_tokens, load.accepted_draft_tokens) == (12, 8)
