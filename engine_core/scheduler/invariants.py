"""What must hold of a scheduler's sequences between any two calls."""

from __future__ import annotations

from collections import Counter

from engine_core.errors import InvariantError
from engine_core.request import NO_ROW, Request, Sequence, Status
from engine_core.scheduler.states.sequence_states import SequenceStates


def check_sequences(states: SequenceStates, pending: Counter[Sequence]) -> None:
    """Raises InvariantError when counters, states, rows or blocks contradict each other.

    pending: plans in flight that sample for each sequence. Cost: all blocks, all live sequences.
    """
    running = [sequence for sequence in states.running if sequence.status is Status.RUNNING]
    waiting = list(states.waiting)
    forking = [sequence for request in states.requests for sequence in request.forking]
    for sequence in running + waiting + forking:
        _check_counts(sequence, states.groups[sequence.request].num_pending_plans(pending[sequence]))
    for sequence in running + [follower for follower in forking if follower.blocks]:
        _check_running(sequence, states)
        states.prefix_cache.check_invariants(sequence)
    if any(sequence.num_new_tokens > 1 for sequence in running[:-1]):
        raise InvariantError("a sequence was admitted behind a prompt that is not complete")
    preparing = [
        sequence
        for request in states.preparing
        for sequence in request.sequences
        if sequence.status is Status.WAITING
    ]
    for sequence in waiting + preparing:
        _check_waiting(sequence)
    for request in states.requests:
        _check_request(request)
        states.groups[request].check_invariants()
    _check_states(running + waiting + preparing + forking, states)
    _check_rows(running + forking, states)
    states.waiting.check_invariants(len(running))
    states.throughput.check_invariants(len(running))
    states.swap.check_invariants(waiting)
    states.quarantine.check_invariants(running)
    states.media.check_invariants(states.requests)
    _equal("running requests", states.num_running_requests, len({s.request for s in running}))
    blocks = [sequence.blocks for sequence in running + forking if sequence.blocks]
    states.tables.pool.check_invariants([*blocks, *states.tables.held.values()])


def _check_counts(sequence: Sequence, num_pending: int) -> None:
    """num_pending: plans in flight that sample for it."""
    num_pending += sequence.num_uncertain_tokens
    _equal("tokens", sequence.num_tokens, sequence.num_known_tokens + num_pending)
    if not 0 <= sequence.num_computed_tokens <= sequence.num_tokens < sequence.limit + (num_pending > 0):
        raise InvariantError(
            f"{sequence.num_computed_tokens} computed of {sequence.num_tokens} tokens, limit {sequence.limit}"
        )


def _check_running(sequence: Sequence, states: SequenceStates) -> None:
    size = states.tables.block_size
    if max(sequence.num_computed_tokens, sequence.num_slots) > len(sequence.blocks) * size:
        raise InvariantError("a sequence has fewer blocks than slots")
    writable = range(sequence.num_computed_tokens // size, -(-sequence.num_slots // size))
    if sequence.num_slots > sequence.num_computed_tokens and any(
        states.tables.pool.is_shared(sequence.blocks[i]) for i in writable
    ):
        raise InvariantError("a sequence may write to a shared block")


def _check_waiting(sequence: Sequence) -> None:
    if sequence.status is not Status.WAITING:
        raise InvariantError(f"a {sequence.status.name} sequence is in the waiting queue")
    if sequence.row != NO_ROW or sequence.blocks or sequence.num_computed_tokens:
        raise InvariantError("a waiting sequence holds a row, blocks or computed tokens")
    if sequence.num_committed:
        raise InvariantError("a waiting sequence has committed blocks")


def _check_request(request: Request) -> None:
    live = [sequence for sequence in request.sequences if sequence.status is not Status.ENDED]
    _equal("live sequences", request.num_live, len(live))
    _equal("running sequences", request.num_running, sum(s.status is Status.RUNNING for s in live))
    if not live:
        raise InvariantError("a request without live sequences is in flight")
    if request.prompt_logprobs is not None and any(sequence.output for sequence in live):
        raise InvariantError("a request has output before the log-probabilities of its prompt")
    if request.forking and sum(sequence.leads for sequence in live) != 1:
        raise InvariantError("siblings wait for a prompt that no sequence computes")


def _check_states(found: list[Sequence], states: SequenceStates) -> None:
    """Checks that each live sequence is running, waiting or forking, and only one of them."""
    live = [
        sequence
        for request in states.requests
        for sequence in request.sequences
        if sequence.status is not Status.ENDED
    ]
    if len(found) != len(set(found)) or set(found) != set(live):
        raise InvariantError(f"{len(live)} live sequences, {len(found)} in some state")


def _check_rows(holders: list[Sequence], states: SequenceStates) -> None:
    """Checks that each row is free or has one holder; a forking sequence has one while its leader runs."""
    rows = [sequence.row for sequence in holders if sequence.row != NO_ROW]
    if sorted(rows + states.rows.free) != list(range(states.rows.num_rows)):
        raise InvariantError(f"rows {sorted(rows)} are held, {sorted(states.rows.free)} are free")
    for sequence in holders:
        leader_runs = any(s.leads and s.status is Status.RUNNING for s in sequence.request.sequences)
        if (sequence.row != NO_ROW) != (sequence.status is Status.RUNNING or leader_runs):
            raise InvariantError(f"a {sequence.status.name} sequence has row {sequence.row}")


def _equal(what: str, counted: int, found: int) -> None:
    if counted != found:
        raise InvariantError(f"{what}: counted {counted}, found {found}")
