"""The order of a step, on a backend that records what it is told."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernels.ops.attention.ragged import Integers
from kernels.wanted import Wanted
from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, Pooling
from pagewire.ipc.columns import pack_u32, unpack_f32, unpack_u32
from tests.logprob_columns import top
from worker.executor.backend import Deferred, LaunchClock, Media, SampledTokens, StepTimes
from worker.executor.executor import StepExecutor
from worker.grammar.rows import GrammarRows
from worker.pooling.vectors import States
from worker.sampling.logprobs.messages import LogprobCandidates, PromptPart
from worker.step.beams import NO_TOKEN, BeamCandidates
from worker.step.plan_reader import NO_TOKEN_COLUMN, PlanCheck, RowFeature, Step, Swaps
from worker.step.rows import PlanError, RowTable
from worker.step.warmup_plans import decode_plan, prefill_plan


class RecordingBackend:
    """Samples 10 + row, and notes every call. Host tokens are 0 where `late`, as on a device of its own."""

    def __init__(self, late: bool = False) -> None:
        self.calls: list[str] = []
        self.features: Sequence[RowFeature] = ()
        self.grammars = GrammarRows(40, None)
        self.num_host_blocks = 4
        self.media: Media | None = None
        self.plan_check: PlanCheck | None = None
        self.late = late
        self.wanted: list[Wanted] = []
        self.done = 0  # steps that are
        self._launched = 0

    def repeat(self, plan: worker_pb2.StepPlan, clock: LaunchClock) -> SampledTokens | None:
        return None

    @contextmanager
    def step(self, plan: worker_pb2.StepPlan) -> Iterator[None]:
        self.calls.append("begin")
        yield

    def update_rows(self, plan: worker_pb2.StepPlan, appended: list[int], token_ids: Integers) -> None:
        self.calls.append(f"rows {appended}")

    def swap(self, swaps: Swaps) -> None:
        self.calls.append(f"swap {len(swaps)}")

    def copy_blocks(self, sources: Integers, targets: Integers) -> None:
        self.calls.append(f"copy {sources.tolist()}")

    def upload(self, step: Step, wanted: Wanted) -> None:
        self.calls.append("upload")
        self.wanted.append(wanted)

    def forward(self) -> "RecordingBackend":
        self.calls.append("forward")
        return self

    def sampled_states(self, index: Integers) -> States:
        self.calls.append(f"states {index.tolist()}")
        return lambda: np.full((len(index), 2), [3.0, 4.0], np.float32)

    def chosen_logits(self, index: Integers, token_ids: Integers) -> States:
        self.calls.append(f"logits {token_ids.tolist()} at {index.tolist()}")
        return lambda: token_ids.astype(np.float32) / 2

    def row_states(self, entry: int, count: int) -> States:
        self.calls.append(f"row {entry} states {count}")
        return lambda: np.full((count, 2), [1.0, np.inf], np.float32)

    def prompt_logprobs(
        self, parts: Sequence[PromptPart]
    ) -> Deferred[Iterable[worker_pb2.RowPromptLogprobs]]:
        self.calls.append(f"prompts {len(parts)}")
        return lambda: [worker_pb2.RowPromptLogprobs(row=part.row, start=part.start) for part in parts]

    def sample(
        self, rows: Integers, index: Integers | None, logprobs: Mapping[int, LogprobCandidates]
    ) -> SampledTokens:
        self.calls.append(f"sample {rows.tolist()} at {None if index is None else index.tolist()}")
        tokens = rows + 10
        return SampledTokens(np.zeros_like(rows) if self.late else tokens, lambda: tokens, lambda: None)

    def beam_candidates(self, rows: Integers, index: Integers, count: int) -> Deferred[BeamCandidates]:
        self.calls.append(f"candidates {rows.tolist()} at {index.tolist()}")
        ids = np.arange(count) + rows[:, None]
        return lambda: BeamCandidates(ids, -ids.astype(np.float32))

    def submit(self, clock: LaunchClock) -> "RecordingCompletion":
        self.calls.append("submit")
        self._launched += 1
        return RecordingCompletion(self, self._launched)


class RecordingCompletion:
    def __init__(self, backend: RecordingBackend, number: int) -> None:
        self._backend, self._number = backend, number

    def seconds_left(self, followed: bool) -> float:
        return 0.0 if followed or self._backend.done >= self._number else 1.0

    def wait(self) -> StepTimes:
        self._backend.calls.append(f"wait {self._number}")
        return StepTimes(started_ns=self._number, duration_us=7, prepare_us=1, forward_us=2, sample_us=3)


def executor(late: bool = False) -> StepExecutor[RecordingBackend]:
    rows = RowTable(max_num_rows=6, max_model_len=12, vocab_size=50, block_size=4, num_blocks=20)
    return StepExecutor(rows, RecordingBackend(late), max_num_batched_tokens=16)


def test_a_step_goes_through_its_phases_in_order():
    runner = executor()
    plan = prefill_plan([3, 2], 4)
    plan.new_rows[1].prompt_logprobs.CopyFrom(top(0))
    plan.new_rows[1].prompt_logprobs_start = 1
    plan.copy_sources, plan.copy_targets = pack_u32([2]), pack_u32([3])
    plan.swap_out_blocks = plan.swap_out_host_blocks = pack_u32([0, 1])
    plan.step = 5
    result = runner.execute(plan)
    assert runner.backend.calls == [
        *("begin", "rows []", "swap 2", "copy [2]", "upload", "forward", "prompts 1"),
        *("sample [0, 1] at None", "submit", "wait 1"),
    ]
    assert result == worker_pb2.StepResult(
        step=5,
        token_ids=pack_u32([10, 11]),
        prompt_logprobs=[worker_pb2.RowPromptLogprobs(row=1, start=1)],
        started_ns=1,
        duration_us=7,
        prepare_us=1,
        forward_us=2,
        sample_us=3,
    )


class RecordedMedia:
    """Notes what a plan says of media."""

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.failed = calls, set[int]()

    def follow(self, plan: worker_pb2.StepPlan) -> None:
        self.calls.append("follow")

    def forget_media(self) -> None:
        self.calls.append("forget_media")


def test_media_is_encoded_before_rows_begin():
    runner = executor()
    runner.backend.media = RecordedMedia(runner.backend.calls)
    runner.execute(worker_pb2.StepPlan(step=1, forgotten_media=bytes(32)))
    runner.abandon()
    followed = [call for call in runner.backend.calls if "media" in call or call == "follow"]
    assert followed == ["follow", "forget_media"]
    assert runner.backend.calls.index("follow") < runner.backend.calls.index("rows []")


def test_a_row_whose_media_failed_has_no_token():
    runner = executor()
    media = RecordedMedia(runner.backend.calls)
    runner.backend.media = media
    media.failed.add(1)
    result = runner.execute(prefill_plan([3, 2], 4))
    assert unpack_u32(result.token_ids) == [10, NO_TOKEN_COLUMN]


def test_without_an_encoder_media_is_refused():
    for plan in (worker_pb2.StepPlan(forgotten_media=bytes(32)), prefill_plan([3], 4)):
        if plan.new_rows:
            plan.new_rows[0].media.add(digest=bytes(32))
        with pytest.raises(PlanError, match="encode"):
            executor().execute(plan)


def test_a_plan_that_computes_nothing_only_changes_rows():
    runner = executor()
    runner.execute(prefill_plan([3], 4))
    runner.backend.calls.clear()
    assert runner.execute(worker_pb2.StepPlan(step=2, removed_rows=pack_u32([0]))).token_ids == b""
    assert runner.backend.calls == ["begin", "rows []", "submit", "wait 2"]
    assert runner.rows.num_tokens[0] == 0


def test_beams_give_candidates_and_the_others_sample():
    """Each where it stands among the sampled rows; the core appends to beams, and nothing else does."""
    runner = executor()
    plan = prefill_plan([2, 2, 2], 4)
    plan.new_rows[1].num_beam_candidates = 2
    result = runner.execute(plan)
    assert runner.backend.calls[4:6] == ["candidates [1] at [1]", "sample [0, 2] at [0, 2]"]
    assert runner.backend.wanted == [Wanted.LOGITS]
    assert unpack_u32(result.token_ids) == [10, 0, 12]
    assert unpack_u32(result.beam_token_ids) == [1, 2] and unpack_f32(result.beam_logprobs) == [-1, -2]
    assert runner.rows.num_tokens.tolist()[:3] == [3, 2, 3]
    runner.execute(worker_pb2.StepPlan(append_rows=pack_u32([1]), append_token_ids=pack_u32([33])))
    assert runner.backend.calls[-3] == "rows [1]" and runner.rows.token_ids[1, 2] == 33


def test_rows_that_pool_have_vectors_and_the_others_sample():
    """Beside a beam: each where it stands among the sampled rows. A vector that is not finite is none."""
    runner = executor()
    plan = prefill_plan([2, 2, 2, 2], 4)
    plan.new_rows[0].pooling.type = POOLING_TYPE_MEAN
    plan.new_rows[1].num_beam_candidates = 1
    plan.new_rows[3].pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST, normalize=True))
    result = runner.execute(plan)
    assert runner.backend.calls[4:8] == [
        *("row 0 states 2", "states [3]", "candidates [1] at [1]", "sample [2] at [2]"),
    ]
    assert unpack_u32(result.token_ids) == [NO_TOKEN_COLUMN, 0, 12, 0]
    (vector,) = result.vectors
    assert vector.entry == 3 and unpack_f32(vector.values) == pytest.approx([0.6, 0.8], abs=1e-7)
    assert runner.rows.num_tokens.tolist()[:4] == [2, 2, 3, 2]


def test_rows_that_pool_alone_are_not_sampled():
    runner = executor()
    plan = prefill_plan([2], 4)
    plan.new_rows[0].pooling.type = POOLING_TYPE_LAST
    assert unpack_f32(runner.execute(plan).vectors[0].values) == [3.0, 4.0]
    assert not any(call.startswith("sample") for call in runner.backend.calls)
    assert runner.backend.wanted == [Wanted.STATES]


def test_rows_that_pool_logits_of_tokens():
    """Each those that it names, beside a row that pools its state."""
    runner = executor()
    plan = prefill_plan([2, 2, 2], 4)
    plan.new_rows[0].pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST, token_ids=[6]))
    plan.new_rows[1].pooling.type = POOLING_TYPE_LAST
    plan.new_rows[2].pooling.CopyFrom(Pooling(type=POOLING_TYPE_LAST, token_ids=[8, 4]))
    result = runner.execute(plan)
    assert [unpack_f32(vector.values) for vector in result.vectors] == [[3], [3, 4], [4, 2]]
    assert "logits [[6, 6], [8, 4]] at [0, 2]" in runner.backend.calls
    assert runner.backend.wanted == [Wanted.LOGITS]


def test_beams_alone_are_not_sampled():
    runner = executor()
    plan = prefill_plan([2], 4)
    plan.new_rows[0].num_beam_candidates = 3
    assert len(unpack_u32(runner.execute(plan).beam_token_ids)) == 3
    assert not any(call.startswith("sample") for call in runner.backend.calls)


@pytest.mark.parametrize("field", ["logprobs", "nothing"])
def test_the_backend_knows_when_only_tokens_are_wanted(field: str):
    runner = executor()
    plan = prefill_plan([2, 2], 4)
    if field == "logprobs":
        plan.new_rows[1].logprobs.CopyFrom(top(1))
    runner.execute(plan)
    assert runner.backend.wanted == [Wanted.TOKENS if field == "nothing" else Wanted.LOGITS]


def test_a_row_without_a_token_keeps_its_place():
    runner = executor()
    sampled = SampledTokens(np.array([NO_TOKEN]), lambda: np.array([NO_TOKEN]), lambda: None)
    runner.backend.sample = lambda rows, index, logprobs: sampled  # type: ignore[method-assign]
    assert unpack_u32(runner.execute(prefill_plan([2], 4)).token_ids) == [NO_TOKEN_COLUMN]
    assert runner.rows.token_ids[0, 2] == 0 and runner.rows.num_tokens[0] == 3


def test_steps_are_launched_ahead_of_their_results():
    """On a device that keeps its tokens: the host has zeros, the results have the tokens."""
    runner = executor(late=True)
    assert runner.seconds_left() is None
    runner.launch(prefill_plan([2, 2], 4))
    assert runner.seconds_left() == 1.0
    runner.launch(decode_plan([2, 2]))
    assert runner.seconds_left() == 0.0, "with another step behind it, waiting is due"
    assert "wait 1" not in runner.backend.calls
    assert [unpack_u32(runner.finish().token_ids) for _ in range(2)] == [[10, 11]] * 2
    assert runner.rows.token_ids[:2, 2:4].tolist() == [[0, 0]] * 2
    assert runner.seconds_left() is None


def test_a_plan_that_does_not_fit_leaves_no_step_behind():
    runner = executor()
    with pytest.raises(PlanError, match="max_num_batched_tokens"):
        runner.launch(prefill_plan([9, 9], 4))
    assert runner.seconds_left() is None


def test_appended_columns_of_different_lengths_are_refused():
    runner = executor()
    with pytest.raises(PlanError, match="differ in length"):
        runner.launch(worker_pb2.StepPlan(append_token_ids=pack_u32([3])))


def test_the_clock_leaves_out_what_was_not_computed():
    clock = LaunchClock()
    assert clock.times(clock.launched_ns, clock.launched_ns + 9_000) == StepTimes(clock.launched_ns, 9)
    clock.mark_uploaded()
    clock.mark_forwarded()
    times = clock.times(clock.launched_ns, clock.launched_ns + 10**9)
    total = times.prepare_us + times.forward_us + times.sample_us
    assert times.duration_us == 10**6 and 10**6 - 3 <= total <= 10**6
    assert times.encode_us == 0


def test_the_clock_tells_encoding_from_the_inputs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic_ns", iter([1_000_000, 6_000_000, 7_000_000, 9_000_000]).__next__)
    clock = LaunchClock()
    clock.mark_encoded()
    assert clock.times(1_000_000, 8_000_000) == StepTimes(1_000_000, 7000, encode_us=5000)
    clock.mark_uploaded()
    clock.mark_forwarded()
    assert clock.times(1_000_000, 10_000_000) == StepTimes(1_000_000, 9000, 1000, 2000, 1000, 5000)


def burst_plan(rows: list[int], starts: list[int], steps: int, **columns: Any) -> worker_pb2.StepPlan:
    """Rows that decode so many steps."""
    numbers = {"rows": rows, "starts": starts, "counts": [steps] * len(rows), "sample_rows": rows}
    numbers |= {"sample_sources": list(range(len(rows))), "sample_counts": [steps] * len(rows), **columns}
    return worker_pb2.StepPlan(step=9, **{name: pack_u32(column) for name, column in numbers.items()})


def decoding(stop: int = 0) -> StepExecutor[RecordingBackend]:
    """Rows 0 and 1, of 3 and 2 tokens, that have sampled one more. stop: token that may end row 1."""
    runner, plan = executor(), prefill_plan([3, 2], 4)
    for number, new in enumerate(plan.new_rows):
        new.blocks = pack_u32([3 * number, 3 * number + 1, 3 * number + 2])
    plan.new_rows[1].stop_token_ids[:] = [stop] if stop else []
    runner.execute(plan)
    runner.backend.calls.clear()
    return runner


def test_a_burst_is_a_step_after_the_other():
    runner = decoding()
    result = runner.execute(burst_plan([0, 1], [3, 2], 3))
    assert [call for call in runner.backend.calls if "sample" in call] == ["sample [0, 1] at None"] * 3
    assert unpack_u32(result.sample_counts) == [3, 3]
    assert unpack_u32(result.token_ids) == [10, 10, 10, 11, 11, 11]
    assert result.step == 9 and not result.draft_counts
    assert (result.started_ns, result.duration_us, result.forward_us) == (2, 21, 6)
    assert runner.rows.num_tokens.tolist()[:2] == [7, 6]


def test_a_burst_ends_when_a_row_may_have_ended():
    runner = decoding(stop=11)
    assert unpack_u32(runner.execute(burst_plan([0, 1], [3, 2], 3)).sample_counts) == [1, 1]
    assert unpack_u32(decoding(stop=12).execute(burst_plan([0, 1], [3, 2], 3)).sample_counts) == [3, 3]


def test_a_burst_ends_when_it_is_interrupted():
    runner, answers = decoding(), iter([False, True])
    runner.launch(burst_plan([0, 1], [3, 2], 4), lambda: next(answers))
    assert unpack_u32(runner.finish().sample_counts) == [2, 2]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"counts": [2, 2]}, "room for drafts"),
        ({"counts": [3, 2], "sample_counts": [3, 2]}, "different numbers"),
        ({"starts": [3, 3]}, "that it does not have"),
    ],
)
def test_a_burst_that_does_not_fit(changes: dict[str, Any], why: str):
    with pytest.raises(PlanError, match=why):
        decoding().execute(burst_plan([0, 1], **({"starts": [3, 2], "steps": 3} | changes)))
