"""One rank of a worker group."""

from engine_core.io.rank import Rank
from engine_core.io.worker_process import WorkerChild
from pagewire.internal.v1.worker_pb2 import WorkerHello


def child(pid: int) -> WorkerChild:
    made = object.__new__(WorkerChild)
    made.pid = pid
    return made


def test_a_rank_that_the_core_has_started_is_known_by_its_process() -> None:
    rank = Rank(0, 1, child(42), 0.0)
    assert rank.is_greeted_by(WorkerHello(rank=0, pid=42))
    assert not rank.is_greeted_by(WorkerHello(rank=0, pid=43))


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
    assert str(Rank(1, 2, None, 0.0).death("lost")) == "rank 1 of the worker is gone: lost"
