"""One rank of a worker group."""

from engine_core.io.rank import Rank, find_hung
from engine_core.io.worker_process import WorkerChild
from pagewire.internal.v1.worker_pb2 import WorkerHello, WorkerMessage


def child(pid: int) -> WorkerChild:
    made = object.__new__(WorkerChild)
    made.pid = pid
    return made


def test_a_rank_that_the_core_has_started_is_known_by_its_process() -> None:
    rank = Rank(0, 1, child(42), 0.0)
    assert rank.is_greeted_by(WorkerHello(rank=0, pid=42))
    assert not rank.is_greeted_by(WorkerHello(rank=0, pid=43))
    assert not rank.is_greeted_by(WorkerHello(rank=1, pid=42)), "of another host, which has such a pid, too"


def test_an_external_rank_is_known_by_its_number() -> None:
    rank = Rank(1, 2, None, 0.0)
    assert rank.is_greeted_by(WorkerHello(rank=1, pid=42))
    assert not rank.is_greeted_by(WorkerHello(rank=0, pid=42))


def test_a_rank_is_greeted_once() -> None:
    rank = Rank(0, 1, None, 0.0)
    rank.peer = b"first"
    assert not rank.is_greeted_by(WorkerHello(rank=0, pid=42))


def test_messages_call_the_only_rank_the_worker() -> None:
    assert str(Rank(0, 1, None, 0.0).death("its connection is lost")) == (
        "the worker is gone: its connection is lost"
    )
    rank = Rank(1, 2, None, 0.0)
    assert str(rank.death("lost")) == "rank 1 of the worker is gone: lost"
    rank.greet(WorkerHello(rank=1, host="b"), b"peer", 7)
    assert str(rank.death("lost")) == "rank 1 of the worker (on b) is gone: lost"
    assert (rank.peer, rank.connection, rank.host) == (b"peer", 7, "b")


def rank_of(number: int, quiet_s: float = 0.0, *, stopped: bool = False, answered: bool = False) -> Rank:
    """A rank of three that owes a step."""
    rank = Rank(number, 3, None, 1.0)
    rank.hang_detector.loaded(0.0)
    rank.hang_detector.sent(1)
    rank.hang_detector.look(quiet_s, None)
    rank.is_stopped = stopped
    if answered:
        rank.messages.append(WorkerMessage())
    return rank


def test_ranks_wait_for_the_one_that_computes() -> None:
    """Though they exceed their limits first: theirs is shorter."""
    ranks = rank_of(0, 5.0), rank_of(1, 0.0), rank_of(2, 5.0)
    waiting = {ranks[0]: "slow", ranks[2]: "slow"}
    assert find_hung(ranks, waiting) is None
    assert find_hung(ranks, {**waiting, ranks[1]: "slow"}) is ranks[1]
    assert find_hung(ranks, {}) is None


def test_ranks_wait_for_the_one_that_was_stopped() -> None:
    ranks = rank_of(0, 5.0), rank_of(1, 5.0, stopped=True), rank_of(2)
    assert find_hung(ranks, {ranks[0]: "slow"}) is None, "it may still be let go on"
    assert find_hung(ranks, {ranks[0]: "slow", ranks[1]: "slow"}) is ranks[1]


def test_a_rank_that_has_answered_is_not_to_blame() -> None:
    ranks = rank_of(0, 5.0), rank_of(1, 0.0, answered=True)
    assert find_hung(ranks, dict.fromkeys(ranks, "slow")) is ranks[0]
    assert find_hung(ranks, {ranks[0]: "slow"}) is ranks[0]
