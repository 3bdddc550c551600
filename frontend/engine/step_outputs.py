"""Distributes a step's output columns: each sequence's tokens go to its sink, by position."""

import itertools
import time
from collections.abc import Mapping

from frontend.engine.core import Core, JournalEntry
from frontend.engine.dispatcher import Dispatcher
from frontend.engine.logprobs import Scores, split_scores
from frontend.errors import ProtocolError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import unpack_u8, unpack_u32, unpack_u32_array, unpack_u64

_OURS = KeyboardInterrupt, SystemExit
"""Exceptions that concern the process. Any other BaseException concerns one request: a panic in the
tokenizer's Rust code is not an Exception."""
NUM_WAITS = 4
"""Causes in StepOutputs.started_waits_us."""


def dispatch(outputs: engine_pb2.StepOutputs, core: Core, requests: Dispatcher) -> None:
    """Hands the outputs of a step of `core` to their sinks. requests: learns how requests end.

    Work is per step and sequence, not per token, except for lists. Raises ValueError when the columns do not
    fit together.
    """
    now = time.monotonic_ns()
    in_flight = core.in_flight
    if outputs.started_handles:
        _push_started(outputs, in_flight)
    if outputs.draft_counts:
        _push_drafts(outputs, in_flight)
    if outputs.paused_handles:
        _push_paused(outputs, in_flight, now)
    for part in outputs.prompt_logprobs:
        _push_prompt_logprobs(part, core, requests)
    for vector in outputs.vectors:
        if (pooled := in_flight.get(vector.handle)) is not None:
            pooled.sink.vector = vector.values
    columns = (
        unpack_u64(outputs.handles),
        unpack_u32(outputs.indexes),
        unpack_u32(outputs.positions),
        counts := unpack_u32(outputs.counts),
        unpack_u8(outputs.finish_reasons),
        unpack_u32(outputs.finish_token_ids),
    )
    token_ids = unpack_u32_array(outputs.token_ids)
    rows = list(zip(*columns, strict=True))  # raises before anything is pushed when one is shorter
    if sum(counts) != len(token_ids):
        raise ValueError("columns of different lengths")
    scores = split_scores(outputs, counts) if outputs.has_logprobs else itertools.repeat(None)
    end = 0
    for (handle, index, position, count, reason, matched), own_scores in zip(rows, scores, strict=False):
        start, end = end, end + count
        entry = in_flight.get(handle)
        if entry is None:
            continue  # released; the abort reaches the core by the next step
        try:
            unknown_to_core = entry.sink.push(
                index, position, token_ids[start:end], reason, matched, now, own_scores
            )
        except ProtocolError as error:
            requests.invalid(core, entry, error)
            continue
        except _OURS:
            raise
        except BaseException as error:  # the other sequences of the step continue
            requests.give_up(core, entry, error)
            continue
        if entry.sink.ended:
            requests.complete(entry)
        if unknown_to_core:
            core.abort(handle, index)


def _push_started(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry]) -> None:
    handles = unpack_u64(outputs.started_handles)
    waits = unpack_u32(outputs.started_waits_us) or [0] * (NUM_WAITS * len(handles))
    for handle, queue_us, cached, place in zip(
        handles,
        unpack_u32(outputs.started_queue_us),
        unpack_u32(outputs.started_cached_tokens),
        range(0, len(waits), NUM_WAITS),
        strict=True,
    ):
        entry = in_flight.get(handle)
        if entry is not None:
            entry.sink.started(queue_us, cached, waits[place : place + NUM_WAITS])


def _push_paused(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry], now: int) -> None:
    handles, pauses = unpack_u64(outputs.paused_handles), unpack_u32(outputs.paused_us)
    for handle, pause_us in zip(handles, pauses, strict=True):
        entry = in_flight.get(handle)
        if entry is not None:
            entry.sink.paused(pause_us, now)


def _push_drafts(outputs: engine_pb2.StepOutputs, in_flight: Mapping[int, JournalEntry]) -> None:
    drafted = unpack_u32(outputs.draft_counts)
    methods = outputs.draft_methods or bytes(len(drafted))
    columns = (unpack_u64(outputs.handles), unpack_u32(outputs.counts), drafted, methods)
    for handle, count, num_drafted, method in list(
        zip(*columns, strict=True)
    ):  # raises before anything is pushed
        entry = in_flight.get(handle)
        if entry is not None and num_drafted:
            entry.sink.drafted(method, num_drafted, min(max(count - 1, 0), num_drafted))


def _push_prompt_logprobs(part: engine_pb2.PromptLogprobs, core: Core, requests: Dispatcher) -> None:
    scores = Scores.read(part.columns)
    entry = core.in_flight.get(part.handle)
    if entry is not None:
        try:
            entry.sink.push_prompt_logprobs(part.start, scores)
        except ProtocolError as error:
            requests.invalid(core, entry, error)
