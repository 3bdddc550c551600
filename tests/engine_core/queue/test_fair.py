"""The fair queue against a naive reference, its corner cases, and the shares that result."""

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine_core.queue import fair
from engine_core.queue.base import Ahead
from engine_core.queue.fair import FairQueue
from engine_core.queue.token_counters import Weights
from engine_core.request import Sequence
from tests.engine_core.fakes import add_request, make

WEIGHTS = Weights(prompt_token=1, output_token=2, tenants={"b": 2, "c": 4})
"""Powers of two: sums of such fractions are exact in whatever order they are made."""


def before(queue: FairQueue, sequence: Sequence) -> Ahead:
    """What comes before a sequence that waits, where no output is expected."""
    return queue.ahead(sequence.request, 0.0, sequence)


@dataclasses.dataclass(eq=False)
class Run:
    """A run, as the reference knows it."""

    sequence: Sequence
    steps: int = 0
    start: int = 0
    known: int = 0


class Twin:
    """The rule as documented: computes every counter and the whole order from scratch."""

    def __init__(self) -> None:
        self.base: Counter[str] = Counter()  # what runs that are over have cost, and lifts
        self.runs: list[Run] = []
        self.charged: dict[Sequence, int] = {}  # first tokens that were paid for, or came for nothing
        self.waiting: dict[Sequence, int] = {}  # -> turn
        self.turns = self.first_turns = 0
        self.last: dict[int, str] = {}  # by priority

    def counter(self, tenant: str) -> float:
        cost = sum(
            WEIGHTS.prompt_token * (run.known - run.start) + WEIGHTS.output_token * run.steps
            for run in self.runs
            if run.sequence.request.tenant == tenant
        )
        return self.base[tenant] + cost / WEIGHTS.tenants.get(tenant, 1)

    def order(self) -> list[Sequence]:
        def key(sequence: Sequence) -> tuple[int, float, float, int]:
            request, turn = sequence.request, self.waiting[sequence]
            due = min(request.deadline_at or math.inf, 60.0) if turn > 0 else -1.0
            return request.priority, self.counter(request.tenant), due, turn

        return sorted(self.waiting, key=key)

    def add(self, sequence: Sequence, in_front: bool) -> None:
        request = sequence.request
        equals = [s.request.tenant for s in self.waiting if s.request.priority == request.priority]
        if request.tenant not in equals:
            least = (
                min(map(self.counter, equals))
                if equals
                else self.counter(self.last.get(request.priority, ""))
            )
            self.base[request.tenant] += max(least - self.counter(request.tenant), 0)  # type: ignore[assignment]
        self.turns += not in_front
        self.first_turns += in_front
        self.waiting[sequence] = -self.first_turns if in_front else self.turns

    def remove(self, sequence: Sequence) -> None:
        del self.waiting[sequence]
        request = sequence.request
        if not any(
            (s.request.tenant, s.request.priority) == (request.tenant, request.priority) for s in self.waiting
        ):
            self.last[request.priority] = request.tenant

    def start(self, sequence: Sequence) -> None:
        charged = self.charged.get(sequence, 0)
        start = max(charged, sequence.num_computed_tokens)
        self.runs.append(Run(sequence, 0, start, max(sequence.num_tokens, charged)))

    def stop(self, run: Run) -> None:
        self.runs.remove(run)
        sequence, known = run.sequence, run.known
        computed = min(max(sequence.num_computed_tokens, run.start), known)
        made = max(sequence.num_tokens - known, 0)
        self.charged[sequence] = computed + made
        cost = WEIGHTS.prompt_token * (computed - run.start) + WEIGHTS.output_token * made
        self.base[sequence.request.tenant] += cost / WEIGHTS.tenants.get(sequence.request.tenant, 1)  # type: ignore[assignment]


class QueueWalk(RuleBasedStateMachine):
    """Arrivals, admissions, steps, preemptions and ends, of a queue and its reference."""

    @initialize()
    def start(self) -> None:
        self.queue, self.twin = FairQueue(WEIGHTS), Twin()
        self.handle = 0

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from([0, 0, 5, -3]),
        prompt=st.integers(1, 20),
        cached=st.integers(0, 19),
        deadline=st.sampled_from([None, None, 3.0, 7.0, 90.0]),
    )
    def arrive(self, tenant: str, priority: int, prompt: int, cached: int, deadline: float | None) -> None:
        self.handle += 1
        message = add_request(self.handle, prompt, tenant=tenant, priority=priority)
        request = make(message)
        request.deadline_at = deadline
        sequence = request.sequences[0]
        self.queue.add(sequence, min(cached, prompt - 1))
        self.twin.add(sequence, in_front=False)
        self.compare()

    @precondition(lambda self: self.twin.waiting)
    @rule(cached=st.integers(0, 19))
    def admit(self, cached: int) -> None:
        sequence = self.queue.head()
        assert sequence is not None
        self.queue.remove(sequence)
        self.twin.remove(sequence)
        sequence.num_computed_tokens = min(cached, sequence.num_tokens - 1)
        self.queue.started(sequence)
        self.twin.start(sequence)
        self.compare()

    @rule(chunk=st.sampled_from([1, 3, 30]))
    def step(self, chunk: int) -> None:
        """All running sequences compute; those with nothing left to compute sample a token."""
        for run in self.twin.runs:
            sequence = run.sequence
            sequence.num_computed_tokens = min(sequence.num_computed_tokens + chunk, sequence.num_tokens)
            if sequence.num_computed_tokens == sequence.num_tokens:
                sequence.num_tokens += 1
            run.steps += 1
        self.queue.step()
        self.compare()

    @precondition(lambda self: self.twin.runs)
    @rule(data=st.data(), preempted=st.booleans())
    def stop(self, data: st.DataObject, preempted: bool) -> None:
        run = data.draw(st.sampled_from(self.twin.runs), "run")
        sequence = run.sequence
        self.queue.stopped(sequence)
        self.twin.stop(run)
        if preempted:
            sequence.num_computed_tokens = 0
            self.queue.add_front(sequence, 0)
            self.twin.add(sequence, in_front=True)
        self.compare()

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(list(self.twin.waiting)), "sequence")
        self.queue.remove(sequence)
        self.twin.remove(sequence)
        self.compare()

    def compare(self) -> None:
        self.queue.check_invariants(len(self.twin.runs))
        assert {*self.queue} == {*self.twin.waiting} and len(self.queue) == len(self.twin.waiting)
        assert self.queue.head() is next(iter(self.twin.order()), None)
        for name in "abc":
            assert self.queue.tenants.counter_on_arrival(name, 0) == self.twin.counter(name)

    def teardown(self) -> None:
        """The whole order, not only its head."""
        if hasattr(self, "queue"):
            while (sequence := self.queue.head()) is not None:
                assert sequence is self.twin.order()[0]
                self.queue.remove(sequence)
                self.twin.remove(sequence)
            assert not self.twin.waiting and not self.queue.num_tokens


def test_the_order_is_that_of_the_naive_twin() -> None:
    run_state_machine_as_test(
        QueueWalk,
        settings=settings(
            max_examples=300,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_lines_that_are_gone_leave_nothing_behind() -> None:
    """Thousands of tenants come and go behind one that waits: only present tenants take memory."""
    queue = FairQueue()
    queue.add(make(add_request(1, tenant="stays")).sequences[0], 0)
    for number in range(2, 3000):
        sequence = make(add_request(number, tenant=f"t{number}")).sequences[0]
        queue.add(sequence, 0)
        queue.remove(sequence)
    (class_,) = queue._classes.values()
    assert len(class_._heap) < 100 and len(class_.lines) == 1
    queue.check_invariants(0)


def test_as_many_lines_as_there_are_tenants() -> None:
    """A thousand of them, of different weights and counters, come out in the order of the twin."""
    weights = Weights(tenants={str(number): 2.0 ** (number % 5) for number in range(1000)})
    queue = FairQueue(weights)
    for number in range(1000):
        sequence = make(add_request(number + 1, 1 + number % 7, tenant=str(number))).sequences[0]
        queue.add(sequence, 0)
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        queue.started(head)
        queue.step()
        order.append(int(head.request.tenant))
    assert order == list(range(1000)), "all had nothing: the first that came"


def test_siblings_that_fork_count_as_sequences_ahead() -> None:
    """Four requests of 64 sequences once counted as four, and their output as that of four."""
    queue = FairQueue()
    for handle, n in ((1, 4), (2, 1)):
        queue.add(make(add_request(handle, prompt=5, n=n, tenant="a")).sequences[0], 0)
    assert queue.ahead(make(add_request(3, tenant="a")), 10.0) == (5, 10)
    assert queue._classes[0].lines["a"].cost(10.0) == 10 + 5 * 10 * 2
    queue.remove(queue.head())
    assert queue.ahead(make(add_request(3, tenant="a")), 10.0) == (1, 5)
    queue.check_invariants(0)


def test_what_is_before_a_sequence_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own tenant's earlier ones, a better class, what had its turn; a sample stands for a long line."""
    queue, own = FairQueue(), []
    for handle in range(1, 7):
        own.append(make(add_request(handle, prompt=5, tenant="a")).sequences[0])
        queue.add(own[-1], 0)
    assert [before(queue, each) for each in own] == [(place, 5 * place) for place in range(6)]
    queue.add(make(add_request(8, prompt=7, tenant="b", priority=-1)).sequences[0], 0)
    assert before(queue, own[2]) == (1 + 2, 7 + 10)
    queue.remove(own[5])
    queue.add_front(own[5], 0)
    assert before(queue, own[5]) == (1, 7) and before(queue, own[2]) == (1 + 3, 7 + 15)
    monkeypatch.setattr(fair, "_SAMPLED_SEQUENCES", 3)
    assert before(queue, own[4]) == (1 + 6, 7 + 30), "two of three stand for five"


def test_the_order_where_tokens_cost_nothing_yet() -> None:
    """Prompts are free (--prompt-token-weight 0), and the length of outputs is not known: a line costs
    nothing, and all of it comes before any tenant that was served as much."""
    queue = FairQueue(Weights(prompt_token=0))
    for handle, tenant in ((1, "a"), (2, "b")):
        queue.add(make(add_request(handle, prompt=5, tenant=tenant)).sequences[0], 0)
    for tenant, others in (("a", 1), ("b", 1), ("c", 2)):
        ahead = queue.ahead(make(add_request(3, tenant=tenant)), 0.0)
        own = 1 if tenant != "c" else 0
        assert ahead == (own + others, 5 * (own + others))
    queue.tenants.find("b").charged = 1.0
    assert queue.ahead(make(add_request(3, tenant="a")), 0.0) == (1, 5)


def test_what_is_due_first_is_served_first() -> None:
    """Of a tenant and class; without a deadline after a minute. What had its turn comes first."""
    queue, order = FairQueue(), []
    deadlines = {1: None, 2: 100.0, 3: 30.0, 4: 20.0, 5: 70.0}
    sequences = {}
    for handle, deadline in deadlines.items():
        request = make(add_request(handle, 5), arrival=float(handle == 5) * 8.0)
        request.deadline_at = deadline
        sequences[handle] = request.sequences[0]
        if handle == 1:
            preempted = make(add_request(9, 5)).sequences[0]
            queue.add_front(preempted, 0)
        queue.add(sequences[handle], 0)
        queue.check_invariants(0)
    while (head := queue.head()) is not None:
        order.append(head.request.handle)
        queue.remove(head)
    assert order == [9, 4, 3, 1, 2, 5]
