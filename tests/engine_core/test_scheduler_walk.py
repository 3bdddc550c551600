"""Random walks: after any events in any order, invariants hold and the tokens are those of a sequence that
runs alone.

The fake worker checks at each step that every row reads its own history, of its own namespace, through
its block table. The walk keeps what a frontend would keep: the tokens of every sequence and how it ended.
Prompts share prefixes, with one another and with what was generated, so that the prefix cache has work.
"""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine_core.errors import Refused
from engine_core.intake.validation import Limits
from engine_core.kv_cache import prefix_cache
from engine_core.kv_cache.host_swap import SwapCosts
from engine_core.request import FinishReason
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, AddRequest
from pagewire.ipc.columns import unpack_u32, unpack_u64
from tests.engine_core.fake_beams import beam_search
from tests.engine_core.fake_states import StatefulFakeWorker
from tests.engine_core.fakes import (
    EOS,
    LIMITS,
    VOCAB,
    FakeWorker,
    Ledger,
    adapter_digest,
    add_item,
    add_request,
    expected_output,
    fake_token,
    make,
    namespace,
    num_results_due,
    run,
)
from tests.logprob_columns import listed, top

LOGPROBS = st.sampled_from([None, None, None, top(0), top(2), listed(5, 3, 9)])
ONE_IN_THREE = st.sampled_from([False, False, True])
ONE_IN_FIVE = st.sampled_from([False, False, False, False, True])


class SchedulerWalk(RuleBasedStateMachine):
    """A scheduler, a fake worker, and everything that frontends do to them."""

    searches = True
    """Whether there are beam searches among the requests."""

    @initialize(
        block_size=st.sampled_from([4, 3, 2, 1, 8]),
        num_blocks=st.sampled_from([12, 10, 8, 5, 3, 24]),
        max_num_seqs=st.sampled_from([5, 4, 3, 2, 1]),
        budget=st.sampled_from([7, 40, 16, 4, 1]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        ahead=st.booleans(),
        num_host_blocks=st.sampled_from([0, 4, 12, 40]),
        swap_us_per_block=st.sampled_from([0.0, 1.0, 4.0]),
        samples_per_row=st.sampled_from([1, 1, 2, 5]),
        speculative_tokens_per_step=st.sampled_from([0, 3, 8]),
        num_drafts=st.sampled_from([99, 2]),
        state_checkpoints=st.sampled_from([0, 0, 0, 1, 4]),
        burst=st.sampled_from([0, 0, 3, 9]),
        max_adapters=st.sampled_from([0, 1, 2]),
        turn=st.sampled_from([1, 3, 256]),
        encoder_cache=st.sampled_from([6, 8, 30]),
        encoder_budget=st.sampled_from([1, 6, 30]),
        whole_media=st.booleans(),
        stages=st.sampled_from([1, 1, 2, 3]),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        prefix_cache: bool,
        ahead: bool,
        num_host_blocks: int,
        swap_us_per_block: float,
        samples_per_row: int,
        speculative_tokens_per_step: int,
        num_drafts: int,
        state_checkpoints: int,
        burst: int,
        max_adapters: int,
        turn: int,
        encoder_cache: int,
        encoder_budget: int,
        whole_media: bool,
        stages: int,
    ) -> None:
        if state_checkpoints:  # then the worker has no swap space
            num_host_blocks = 0
        self.scheduler = self.make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            prefix_cache=prefix_cache,
            num_host_blocks=num_host_blocks,
            swap_costs=SwapCosts(1.0, swap_us_per_block),
            samples_per_row=samples_per_row,
            speculative_tokens_per_step=speculative_tokens_per_step,
            state_checkpoints=state_checkpoints,
            burst_seconds=burst / 1000,
            max_adapters_per_step=max_adapters,
            adapter_turn=turn,
            encoder_cache_tokens=encoder_cache,
            max_num_encoder_tokens=encoder_budget,
            whole_media=whole_media,
            stages=stages if ahead and samples_per_row == 1 else 1,
        )
        self.limits = Limits(
            vocab_size=VOCAB,
            max_model_len=max(2, min(30, num_blocks * block_size)),
            max_num_seqs=self.scheduler.num_rows,
            eos_token_ids=frozenset({EOS}),
            num_blocks=num_blocks,
            block_size=block_size,
            embedding_size=4,
            media_kinds=LIMITS.media_kinds,
            max_item_vectors=encoder_cache,
            max_whole_item=budget - self.scheduler.num_rows + 1 if whole_media else None,
        )
        self.ahead = ahead
        if state_checkpoints:
            self.worker: FakeWorker = StatefulFakeWorker(num_blocks, block_size, state_checkpoints)
        else:
            self.worker = FakeWorker(num_blocks, block_size, num_host_blocks)
        self.worker.num_drafts, self.worker.step_us = num_drafts, 1000
        self.worker.encoder_capacity, self.worker.encoder_budget = encoder_cache, encoder_budget
        self.worker.whole_media = whole_media
        self.worker.max_adapters, self.worker.adapters = (
            max_adapters,
            {adapter_digest(name) for name in "abc"},
        )
        self.now = 0.0
        self.handle = 0
        self.sent: dict[int, AddRequest] = {}
        self.ledger = Ledger()
        self.silenced: set[tuple[int, int]] = set()
        self.ended_by_id: set[int] = set()

    def make_scheduler(self, **settings: Any) -> Scheduler:
        return Scheduler(**settings)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.handle += 1
        n = data.draw(st.sampled_from([1, 3, 2, 5]), "n")
        n = min(n, self.limits.max_num_seqs)
        prompt = self.draw_prompt(data)
        max_tokens = data.draw(st.sampled_from([8, 20, 30, 3, 1, 0]), "max_tokens")
        min_tokens = data.draw(st.integers(0, min(3, max_tokens)), "min_tokens")
        delivered: dict[int, list[int]] = {}
        for index in range(n) if data.draw(ONE_IN_FIVE, "delivered") else ():
            most = min(max_tokens, self.limits.max_model_len - len(prompt), 4)
            length = data.draw(st.integers(0, most), "length")
            forbidden = frozenset({EOS, 5, 6, 7})
            delivered[index] = [fake_token(self.handle, index, p, forbidden) for p in range(length)]
        start = data.draw(st.integers(0, len(prompt) - 1), "prompt_logprobs_start")
        message = add_request(
            self.handle,
            prompt,
            logprobs=data.draw(LOGPROBS, "logprobs"),
            prompt_logprobs=None if any(delivered.values()) else data.draw(LOGPROBS, "prompt_logprobs"),
            prompt_logprobs_start=start,
            n=n,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            delivered=delivered,
            # Many tokens stop, so that sequences end at all sorts of places.
            stop_token_ids=range(100, 100 + data.draw(st.sampled_from([0, 50, 200]), "stops")),
            ignore_eos=data.draw(st.booleans(), "ignore_eos"),
            tenant=data.draw(st.sampled_from(["", "", "t"]), "tenant"),
            salt=data.draw(st.sampled_from(["", "", "s"]), "salt"),
            bypass=data.draw(ONE_IN_FIVE, "bypass"),
            priority=data.draw(st.sampled_from([0, 0, 1, -1]), "priority"),
            adapter=data.draw(st.sampled_from(["", "", "a", "b", "c"]), "adapter"),
        )
        if data.draw(ONE_IN_FIVE, "limited"):
            message.stopping.time_limit.FromMilliseconds(data.draw(st.integers(0, 9), "time_limit"))
        if data.draw(ONE_IN_FIVE, "deadline"):
            message.deadline.FromMilliseconds(data.draw(st.integers(0, 9), "deadline"))
        if self.searches and not delivered and data.draw(ONE_IN_FIVE, "beams"):
            self.search(data, message)
        elif not delivered and data.draw(ONE_IN_FIVE, "pools"):
            self.pool(data, message)
        bare = not (message.HasField("prompt_logprobs") or message.HasField("pooling"))
        if bare and data.draw(ONE_IN_THREE, "media"):
            self.add_media(data, message)
        frontend = data.draw(st.sampled_from([b"a", b"b"]), "frontend")
        for index, output in delivered.items():
            self.ledger.tokens[self.handle, index] = output.copy()
        self.sent[self.handle] = message
        self.worker.namespaces[self.handle] = namespace(message)
        prepared = not data.draw(ONE_IN_FIVE, "preparing")
        self.scheduler.add(make(message, self.limits, frontend, self.now), prepared)
        self.collect()

    @precondition(lambda self: self.scheduler.states.preparing)
    @rule()
    def prepared(self) -> None:
        """The oldest request whose grammar is being compiled may begin."""
        preparing = self.scheduler.states.preparing
        self.scheduler.prepared(next(request for request in self.scheduler.requests if request in preparing))

    def search(self, data: st.DataObject, message: AddRequest) -> None:
        """Makes it a beam search, if there is room for all beams."""
        width = data.draw(st.integers(message.sampling.n, self.limits.max_num_seqs), "width")
        penalty = data.draw(st.sampled_from([1.0, 0.0, 2.0, -1.0]), "length_penalty")
        searching = AddRequest()
        searching.CopyFrom(message)
        searching.sampling.beam_search.CopyFrom(
            beam_search(width, penalty, data.draw(st.booleans(), "early"))
        )
        searching.stopping.max_tokens = max(1, message.stopping.max_tokens)
        del searching.stopping.stop_token_ids[6:]
        with contextlib.suppress(Refused):
            make(searching, self.limits)
            message.CopyFrom(searching)

    def pool(self, data: st.DataObject, message: AddRequest) -> None:
        """Makes it a request that pools."""
        for name in ("logprobs", "prompt_logprobs", "prompt_logprobs_start"):
            message.ClearField(name)
        message.sampling.n = message.stopping.max_tokens = 1
        message.stopping.min_tokens = 0
        message.pooling.type = data.draw(st.sampled_from([POOLING_TYPE_LAST, POOLING_TYPE_MEAN]), "pooling")

    def add_media(self, data: st.DataObject, message: AddRequest) -> None:
        """Puts a few items into its prompt, of which others have some too, with tokens between vectors."""
        length, position = len(message.prompt_token_ids) // 4, 0
        for _ in range(data.draw(st.integers(1, 4), "items")):
            position += data.draw(st.sampled_from([0, 0, 1, 5]), "gap")
            number = data.draw(st.integers(0, 3), "item")
            step, size = (2, 3) if number == 3 else (1, (1, 4, 6)[number])
            if self.limits.max_whole_item is not None:
                step, size = 1, min(size, self.limits.max_whole_item)
            if (end := position + step * size) > length:
                return
            add_item(message, range(position, end, step), bytes([number]))
            position = end

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        """Tokens that many prompts begin with, or a prompt with its output so far; then some of its own."""
        length = data.draw(st.integers(1, self.limits.max_model_len - 1), "prompt")
        earlier = data.draw(st.sampled_from([None, None, *self.ledger.tokens]), "goes on from")
        if earlier is None:
            common = list(range(500, 530))
        else:
            common = unpack_u32(self.sent[earlier[0]].prompt_token_ids) + self.ledger.tokens[earlier]
        common = common[: data.draw(st.integers(0, length), "common")]
        own = range(600 + self.handle % 3, 700)
        return common + list(own)[: length - len(common)]

    @rule(steps=st.integers(1, 6), abort_between=ONE_IN_FIVE, data=st.data())
    def step(self, steps: int, abort_between: bool, data: st.DataObject) -> None:
        under_way = self.scheduler.in_flight
        for _ in range(steps):
            plan = self.scheduler.schedule(self.now)
            all_prepare = len(self.scheduler.requests) == len(self.scheduler.states.preparing)
            assert plan.rows or under_way or all_prepare, "no sequence waits while the worker idles"
            assert sum(plan.counts) <= self.scheduler.max_num_batched_tokens
            self.scheduler.check_invariants()
            if plan.rows:
                self.worker.submit(plan)
            if abort_between and self.scheduler.requests:
                self.abort(data)  # an abort may come while steps are under way
            for _ in range(num_results_due(self.scheduler, plan, ahead=self.ahead)):
                self.scheduler.update(self.worker.collect())
                self.scheduler.check_invariants()
            self.collect()
        self.collect()

    @precondition(lambda self: self.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.scheduler.requests)), "request")
        indexes = data.draw(st.frozensets(st.integers(0, request.parameters.sampling.n - 1)), "indexes")
        if request.beam_search is not None and data.draw(st.booleans(), "all"):
            indexes = frozenset()
        if self.scheduler.states.groups[request].ended_by(indexes):
            for index in indexes or range(request.parameters.sampling.n):
                self.silenced.add((request.handle, index))
        self.scheduler.abort(request, indexes)
        self.scheduler.abort(request, indexes)

    @precondition(lambda self: self.scheduler.requests)
    @rule(sure=ONE_IN_FIVE, data=st.data())
    def abort_by_id(self, sure: bool, data: st.DataObject) -> None:
        if not sure:
            return
        request = data.draw(st.sampled_from(list(self.scheduler.requests)), "request")
        self.ended_by_id.add(request.handle)
        self.scheduler.finish(request, FinishReason.ABORTED)
        self.collect()

    @rule(sure=ONE_IN_FIVE)
    def reset_cache(self, sure: bool) -> None:
        if sure:
            self.scheduler.reset_cache()

    @rule(milliseconds=st.integers(1, 5))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_invariants()

    def collect(self) -> None:
        """Hands the outputs to the frontends."""
        for frontend, message in encode_outputs(self.scheduler.take_outputs(), 1, self.scheduler.step):
            assert frontend in (b"a", b"b")
            named = zip(unpack_u64(message.handles), unpack_u32(message.indexes), strict=True)
            assert self.silenced.isdisjoint(named), "nothing more of what the frontend has aborted"
            self.ledger.take(message)

    def teardown(self) -> None:
        """All that is left runs to its end; then everything is free and every token is right."""
        if not hasattr(self, "scheduler"):
            return
        self.collect()
        while self.scheduler.states.preparing:
            self.prepared()
        run(self.scheduler, self.worker, self.ledger, now=self.now, ahead=self.ahead)
        assert not self.scheduler.requests
        assert self.scheduler.pool.num_free == self.scheduler.pool.num_blocks
        assert len(self.scheduler.rows.free) == self.scheduler.num_rows
        assert self.scheduler.swap.num_free == self.scheduler.swap.num_blocks
        for handle, message in self.sent.items():
            for index in range(message.sampling.n):
                self.check_end(handle, index, message)

    def check_end(self, handle: int, index: int, message: AddRequest) -> None:
        key = handle, index
        output, reason = expected_output(message, index, self.limits)
        end = self.ledger.ends.get(key)
        if end is None:
            assert key in self.silenced or message.HasField("deadline")
        if message.sampling.HasField("beam_search") and (
            end is None or handle in self.ended_by_id or message.stopping.HasField("time_limit")
        ):
            return  # the best so far, or nothing
        if end in (None, FinishReason.TIME_LIMIT, FinishReason.ABORTED):
            assert self.ledger.tokens[key] == output[: len(self.ledger.tokens[key])]
        else:
            assert (self.ledger.tokens[key], end) == (output, reason)
        self.ledger.check_scores(message, index)
        if end is FinishReason.STOP:
            self.ledger.check_vector(message)


SchedulerWalk.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedulerWalk = SchedulerWalk.TestCase


def test_the_walk_notices_a_hash_that_collides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the checker: with a hash cut to four bits, a sequence is given blocks of another prefix."""
    whole = prefix_cache.block_hash
    monkeypatch.setattr(prefix_cache, "block_hash", lambda *block: bytes([whole(*block)[0] & 15]))
    monkeypatch.setattr(prefix_cache, "token_bytes", bytes)  # a failure must be found again
    with pytest.raises((AssertionError, IndexError)):
        run_state_machine_as_test(
            SchedulerWalk,
            settings=settings(SchedulerWalk.TestCase.settings, derandomize=True, phases=[Phase.generate]),
        )
