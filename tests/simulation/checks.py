"""What a client checks: every message when it comes, and the whole answer at its end.

All functions raise AssertionError.
"""

from collections.abc import Sequence

from pagewire.v1 import generation_pb2
from pagewire_client.results import FinishReason, Generation, Output
from tests.simulation.adapters import adapted, invocation_start
from tests.simulation.choices import expect_all, expect_sampled
from tests.simulation.expected import Expected, text_of
from tests.simulation.scores import TOLERANCE, check_scores, rank_scores
from tests.simulation.workload import Job

EARLY = FinishReason.TIME_LIMIT, FinishReason.ABORTED
"""Ends that do not come from the tokens."""


class Checks:
    """Of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._name = f"job-{job.number}"
        self._wants = job.request.output
        self._is_search = job.request.sampling.HasField("beam_search")
        self._is_choice = len(job.sampled) > len(job.expected)
        self._digest = next(iter(job.adapters), b"")  # of the adapter
        self._expected, self._sampled = job.expected, job.sampled  # with it
        self._is_named = not job.adapters  # the adapter, by a message

    def check_message(
        self, message: generation_pb2.GenerateResponse, held: Sequence[Output], *, is_continued: bool
    ) -> None:
        """Each sequence goes on where it was, and nothing comes after its end but the end again.

        held: what came before. is_continued: this stream goes on with another one.
        """
        if message.HasField("adapter"):
            self._check_adapter(message.adapter, is_late=any(output.token_ids for output in held))
        assert self._is_named, f"{self._name}: its adapter is not named"
        for sequence in message.sequences:
            output = held[sequence.index] if sequence.index < len(held) else Output(sequence.index)
            assert sequence.position == len(output.token_ids), f"{self._name}: a token is lost or repeated"
            assert sequence.token_count == len(sequence.token_ids)
            if output.finish_reason is not None:
                assert not sequence.token_ids and sequence.HasField("finish"), f"{self._name}: it had ended"
            if self._wants.HasField("logprobs"):
                self._check_scores(sequence, output, is_continued)
        if message.HasField("prompt") and self._wants.HasField("prompt_logprobs") and not held:
            self._check_prompt_scores(message)
        if message.HasField("timings"):
            timings = message.timings
            parts = timings.preprocess, timings.queue, timings.prefill, timings.decode, timings.preempted
            assert sum(part.ToNanoseconds() for part in parts) == timings.total.ToNanoseconds()

    def _check_adapter(self, applied: generation_pb2.AppliedAdapter, is_late: bool) -> None:
        """It is one that the name may stand for, and the same where the stream goes on. is_late: there is
        output."""
        job, digest = self._job, applied.digest
        assert applied.name == job.adapter and digest in job.adapters
        assert not is_late or digest == self._digest, f"{self._name}: another adapter goes on"
        start = invocation_start(job.prompt, job.adapters[digest])
        assert (applied.start if applied.HasField("start") else None) == start, f"{self._name}: wrong start"
        if digest != self._digest:
            adds = job.seen + adapted(job.prompt, digest, job.adapters[digest])
            self._expected = expect_all(job.request, job.prompt, job.max_model_len, adds)
            self._sampled = expect_sampled(job.request, job.prompt, job.max_model_len, adds)
        self._digest, self._is_named = digest, True

    def check_output(self, output: Output, seconds: float, *, is_aborted: bool) -> None:
        """What there is of a sequence. seconds: since the request was sent. is_aborted: by an operator."""
        if output.finish_reason is FinishReason.TIME_LIMIT:
            limit = self._job.request.stopping.time_limit.ToNanoseconds() / 1e9
            assert limit and seconds >= limit - 1e-6, f"{self._name}: too early"
        if output.finish_reason is FinishReason.ABORTED:
            assert is_aborted, f"{self._name}: no abort was sent"
        if not self._is_search:  # beams before their end are not defined
            possible = self._sampled if self._is_choice else [self._expected[output.index]]
            assert any(self._fits(output, one) for one in possible), f"{self._name}: wrong output"

    def check_complete(self, generation: Generation) -> None:
        """Each sequence has its one end, and the counts are right."""
        outputs, usage = generation.outputs, generation.usage
        assert [output.index for output in outputs] == list(range(len(self._expected)))
        assert all(output.finish_reason is not None for output in outputs), f"{self._name}: no end"
        if not any(output.finish_reason in EARLY for output in outputs):
            assert not self._job.is_refused, f"{self._name}: it cannot fit"
            for output, expected in zip(outputs, self._expected, strict=True):
                assert self._fits(output, expected), f"{self._name}: not the most probable"
        poison = self._job.poison
        if poison is not None and poison.probability == 1:
            made = max(len(output.token_ids) for output in outputs)
            is_past = made and len(self._job.prompt) + made > poison.position + 1
            assert not is_past, f"{self._name}: it went on beyond its fatal token"
        total = sum(len(output.token_ids) for output in outputs)
        assert usage.completion_tokens == total or self._is_choice and usage.completion_tokens > total
        assert usage.prompt_tokens == generation.prompt_tokens == len(self._job.prompt)
        assert usage.cached_prompt_tokens <= usage.prompt_tokens  # all of it only where there was output
        assert not (self._job.request.cache.bypass and usage.cached_prompt_tokens)

    def _fits(self, output: Output, expected: Expected) -> bool:
        """Whether this may become what is expected; and, when it has ended, whether it has."""
        if output.token_ids != expected.token_ids[: len(output.token_ids)]:
            return False
        if output.finish_reason is None:
            return True
        if output.finish_reason in EARLY:
            return text_of(output.token_ids).startswith(output.text.rstrip("\ufffd"))
        text = expected.text if self._wants.text else ""
        return (output.token_ids, output.finish_reason, output.stop, output.text) == (
            expected.token_ids,
            expected.reason,
            expected.stop,
            text,
        )

    def _check_scores(
        self, sequence: generation_pb2.SequenceOutput, output: Output, is_continued: bool
    ) -> None:
        """Of the new tokens; and their sum, unless some of them came from another frontend."""
        prompt, token_ids = self._job.prompt, [*output.token_ids, *sequence.token_ids]
        scores = rank_scores(prompt + token_ids)[len(prompt) :]
        check_scores(sequence.logprobs, scores[sequence.position :], self._wants.logprobs)
        if sequence.HasField("finish") and not is_continued:
            total = sequence.finish.cumulative_logprob
            assert abs(total - sum(value for value, _ in scores)) < 100 * TOLERANCE, "wrong sum"

    def _check_prompt_scores(self, message: generation_pb2.GenerateResponse) -> None:
        scores = rank_scores(self._job.prompt)[self._wants.prompt_logprobs_start :]
        if not any(sequence.token_ids for sequence in message.sequences):
            scores = scores[: len(message.prompt.logprobs.ranks)]  # it ended in the middle of its prompt
        check_scores(message.prompt.logprobs, scores, self._wants.prompt_logprobs)
