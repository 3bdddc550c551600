"""What one step brought: the worker's answer to a plan, checked against the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_core.step.plan import Plan
from pagewire.internal.v1 import engine_pb2, worker_pb2
from pagewire.ipc.columns import unpack_f32, unpack_u32
from pagewire.ipc.logprob_columns import check


class Result(NamedTuple):
    """Of one plan. Fields mean what worker.proto says of StepResult; A: the plan's sample_rows."""

    step: int
    token_ids: list[int]  # [A]
    duration_us: int = 0
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    started_ns: int = 0  # on the machine's monotonic clock
    logprobs: engine_pb2.LogprobColumns | None = None
    prompt_logprobs: Sequence[worker_pb2.RowPromptLogprobs] = ()
    beam_token_ids: Sequence[int] = ()
    beam_logprobs: Sequence[float] = ()


def decode_result(message: worker_pb2.StepResult, plan: Plan) -> Result:
    """The result of a message. Raises ValueError when it does not answer this plan."""
    result = Result(
        step=message.step,
        token_ids=unpack_u32(message.token_ids),
        duration_us=message.duration_us,
        prepare_us=message.prepare_us,
        forward_us=message.forward_us,
        sample_us=message.sample_us,
        started_ns=message.started_ns,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs,
        beam_token_ids=unpack_u32(message.beam_token_ids) if message.beam_token_ids else (),
        beam_logprobs=unpack_f32(message.beam_logprobs) if message.beam_logprobs else (),
    )
    if result.step != plan.step or len(result.token_ids) != len(plan.sample_rows):
        raise ValueError(
            f"step {plan.step} with {len(plan.sample_rows)} samples was answered by"
            f" step {result.step}, {len(result.token_ids)} tokens"
        )
    if result.logprobs is not None:
        check(result.logprobs)
    for part in result.prompt_logprobs:
        check(part.columns)
    if len(result.beam_token_ids) != len(result.beam_logprobs):
        raise ValueError(
            f"step {plan.step}: {len(result.beam_token_ids)} candidates of beams,"
            f" {len(result.beam_logprobs)} log-probabilities"
        )
    return result
