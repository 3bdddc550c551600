"""A client: sends a request, reads its stream as the client library does, and believes nothing.

What it must receive is known before it asks (expected.py). It checks every message when it comes, and
at the end that the end was one that could be.
"""

import asyncio
from collections.abc import Callable

import grpc

from frontend.errors import ServiceError
from pagewire.client.errors import RpcError, Unavailable, from_status
from pagewire.client.recovery import Recovery
from pagewire.client.results import FinishReason, Output
from pagewire.v1 import generation_pb2
from tests.simulation.expected import text_of
from tests.simulation.frontends import FrontendProcess
from tests.simulation.machine import Machine
from tests.simulation.scores import TOLERANCE, check_scores, rank_scores
from tests.simulation.workload import Job

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_NOBODY = "failed to connect to all addresses"


class Client:
    """One job. `outcome` is what became of it."""

    def __init__(
        self,
        machine: Machine,
        job: Job,
        servers: Callable[[], list[FrontendProcess | None]],
        num_losses: Callable[[], int],
    ) -> None:
        """servers: the frontends now, None where one is down. num_losses: things that broke so far."""
        self.outcome = ""
        self.is_aborted = False  # an operator has asked for it
        self._machine, self._job, self._servers, self._num_losses = machine, job, servers, num_losses
        self._losses_before = 0  # the last token came
        self._name = f"job-{job.number}"
        self._loop = machine.loop
        self._start = 0.0
        self._wants = job.request.output
        self._is_continued = False
        self._recovery = self._new_recovery()

    async def run(self) -> None:
        """From the first word to the last check."""
        self._start = self._loop.time()
        try:
            await self._call_until_the_end()
        except asyncio.CancelledError:
            self.outcome = "cancelled"
        except RpcError as error:
            self.outcome = error.reason or error.code.name
            self._check_error(error)
        else:
            self.outcome = "complete"
            self._check_complete()
        self._machine.last_progress = self._loop.time()
        self._machine.trace(self._name, "ends:", self.outcome)

    def _new_recovery(self) -> Recovery:
        servers = self._servers()
        return Recovery(self._job.request, len(servers), self._job.place, self._job.timeout, self._loop.time)

    async def _call_until_the_end(self) -> None:
        """As AsyncStream does. A request of which nothing has come, since nobody served, is sent anew."""
        self._recovery = self._new_recovery()
        while True:
            request, left = self._recovery.attempt()
            try:
                return await self._call(request, left)
            except RpcError as error:
                assert error.reason != "ENGINE_DEAD", f"{self._name}: no death lasts so long"
                pause = self._recovery.after(error)
                if pause is None:
                    if not isinstance(error, Unavailable) or self._recovery.generation.outputs:
                        raise
                    self._recovery, pause = self._new_recovery(), 0.3
            await asyncio.sleep(pause)

    async def _call(self, request: generation_pb2.GenerateRequest, left: float | None) -> None:
        """One attempt. Raises RpcError."""
        server = self._servers()[self._recovery.place]
        self._is_continued = bool(request.continuation.sequences)
        self._machine.trace(self._name, "asks", server.name if server else "nobody")
        if server is None:
            raise from_status(grpc.StatusCode.UNAVAILABLE, _NOBODY, ())
        task = server.serve(request, left, self._receive, whole=self._job.whole)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.cancelled():
            raise from_status(grpc.StatusCode.UNAVAILABLE, "Socket closed", ())
        if (error := task.exception()) is not None:
            raise _to_rpc_error(error)

    async def _receive(self, message: generation_pb2.GenerateResponse) -> None:
        """A message comes; the next one is wanted when this returns."""
        self._machine.last_progress = self._loop.time()
        response = generation_pb2.GenerateResponse()
        response.CopyFrom(message)
        self._check_message(response)
        self._recovery.received(response)
        for output in self._recovery.generation.outputs:
            self._check_tokens(output)
        await asyncio.sleep(self._job.reading)

    # Checks. All raise AssertionError.

    def _check_message(self, message: generation_pb2.GenerateResponse) -> None:
        """Each sequence goes on where it was, and nothing comes after its end but the end again."""
        held = {output.index: output for output in self._recovery.generation.outputs}
        for sequence in message.sequences:
            self._machine.trace(
                self._name, "receives", sequence.index, "at", sequence.position, *sequence.token_ids
            )
            output = held.get(sequence.index, Output(sequence.index))
            assert sequence.position == len(output.token_ids), f"{self._name}: a token is lost or repeated"
            assert sequence.token_count == len(sequence.token_ids)
            if output.finish_reason is not None:
                assert not sequence.token_ids and sequence.HasField("finish"), f"{self._name}: it had ended"
            if sequence.token_ids:
                self._losses_before = self._num_losses()
            if self._wants.HasField("logprobs"):
                self._check_scores(sequence)
        if message.HasField("prompt") and self._wants.HasField("prompt_logprobs") and not held:
            scores = rank_scores(self._job.prompt)[self._wants.prompt_logprobs_start :]
            if not any(sequence.token_ids for sequence in message.sequences):
                scores = scores[: len(message.prompt.logprobs.ranks)]  # it ended in the middle of its prompt
            check_scores(message.prompt.logprobs, scores, self._wants.prompt_logprobs)
        if message.HasField("timings"):
            timings = message.timings
            parts = timings.preprocess, timings.queue, timings.prefill, timings.decode
            assert sum(part.ToNanoseconds() for part in parts) == timings.total.ToNanoseconds()

    def _check_scores(self, sequence: generation_pb2.SequenceOutput) -> None:
        """Of these tokens, and at the end of all, unless some of them came from another frontend."""
        prompt, token_ids = self._job.prompt, self._job.expected[sequence.index].token_ids
        scores = rank_scores(prompt + token_ids)[len(prompt) :][: sequence.position + sequence.token_count]
        check_scores(sequence.logprobs, scores[sequence.position :], self._wants.logprobs)
        if sequence.HasField("finish") and not self._is_continued:
            total = sequence.finish.cumulative_logprob
            assert abs(total - sum(value for value, _ in scores)) < 100 * TOLERANCE, "wrong sum"

    def _check_tokens(self, output: Output) -> None:
        expected = self._job.expected[output.index]
        assert output.token_ids == expected.token_ids[: len(output.token_ids)], f"{self._name}: wrong tokens"
        reason = output.finish_reason
        if reason is None:
            return
        if reason is FinishReason.TIME_LIMIT:
            limit = self._job.request.stopping.time_limit.ToNanoseconds() / 1e9
            assert limit and self._loop.time() - self._start >= limit - 1e-6, f"{self._name}: too early"
        elif reason is FinishReason.ABORTED:
            assert self.is_aborted, f"{self._name}: nobody asked for its end"
        else:
            assert (reason, output.stop) == (expected.reason, expected.stop), f"{self._name}: wrong end"
            assert output.token_ids == expected.token_ids, f"{self._name}: ended too early"
            if self._job.request.output.text:
                assert output.text == expected.text, f"{self._name}: wrong text"

    def _check_complete(self) -> None:
        """Each sequence has its one end, and the counts are right."""
        generation = self._recovery.generation
        assert [output.index for output in generation.outputs] == list(range(len(self._job.expected)))
        for output in generation.outputs:
            assert output.finish_reason is not None, f"{self._name}: a sequence has no end"
            if not self._job.request.output.text:
                assert not output.text
            elif output.finish_reason in (FinishReason.ABORTED, FinishReason.TIME_LIMIT):
                assert text_of(output.token_ids).startswith(output.text.rstrip("\ufffd"))
        usage = generation.usage
        assert usage.completion_tokens == sum(len(output.token_ids) for output in generation.outputs)
        assert usage.prompt_tokens == generation.prompt_tokens == len(self._job.prompt)
        assert usage.cached_prompt_tokens <= usage.prompt_tokens  # all of it only where there was output
        assert not (self._job.request.cache.bypass and usage.cached_prompt_tokens)

    def _check_error(self, error: RpcError) -> None:
        """Whether this could happen."""
        losses = self._num_losses() - self._losses_before
        possible = {
            "REQUEST_QUARANTINED": losses > 3,
            "NO_LOGITS": True,  # see World: only where the workload breaks tokens
            "DEADLINE_UNREACHABLE": self._job.timeout is not None and not self._has_tokens(),
        }
        assert possible.get(error.reason, False), f"{self._name}: {error.reason}: {error}"

    def _has_tokens(self) -> bool:
        return any(output.token_ids for output in self._recovery.generation.outputs)


def _to_rpc_error(error: BaseException) -> RpcError:
    """What the client library makes of it."""
    if not isinstance(error, ServiceError):
        raise error
    made = from_status(_CODES[error.code], error.message, ())
    made.reason = error.reason
    return made
