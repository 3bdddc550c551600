"""Ranks of several hosts, here threads and processes that talk over the loopback address."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable

import pytest
import torch

from pagewire.errors import StartupError
from pagewire.internal.v1.worker_pb2 import Initialize
from tests.worker.cpu.test_rank_memory import ignore, make_ranks, on_each
from worker.channel import EngineGone
from worker.cpu import rank_hosts, rank_peers
from worker.cpu.rank_group import ProcessGroup
from worker.cpu.rank_hosts import HostRanks, join_hosts
from worker.loop import RankGone
from worker.meeting import Meeting


def never() -> bool:
    return False


def join_all(size: int, is_core_lost: Callable[[], bool] = never) -> list[HostRanks]:
    meetings = [Meeting(rank, "127.0.0.1", is_core_lost) for rank in range(size)]
    initialize = Initialize(tensor_parallel_size=size, group_name="test", store_port=meetings[0].port)
    found = on_each(lambda rank: join_hosts(initialize, rank, meetings[rank], ignore), size)
    assert all(isinstance(each, HostRanks) for each in found), found
    return [each for each in found if isinstance(each, HostRanks)]


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("size", [2, 4])
def test_what_ranks_have_together_is_what_ranks_of_one_host_have(size: int):
    """To the bit, of every dtype that ranks exchange, and of sums whose order shows."""
    torch.manual_seed(0)
    parts = [torch.randn(5, 7) * 10.0 ** torch.randint(-6, 6, (5, 7)) for _ in range(size)]

    def work(group: ProcessGroup) -> list[torch.Tensor]:
        part = parts[group.rank]
        return [
            *group.gather(part.T),
            *group.gather(part.to(torch.bfloat16)),
            *group.gather((part > 0).to(torch.int8)),
            group.sum(part),
            group.largest(part),
            group.from_first(torch.arange(3) + group.rank),
            torch.tensor(group.least(9 - group.rank)),
        ]

    over_gloo, in_memory = (
        on_each(lambda rank, of=of: work(ProcessGroup(rank, size, ranks=of[rank])), size)  # type: ignore[misc]
        for of in (join_all(size), make_ranks(size))
    )
    for one, other in zip(over_gloo, in_memory, strict=True):
        assert isinstance(one, list) and isinstance(other, list), (one, other)
        for tensor, expected in zip(one, other, strict=True):
            assert tensor.dtype == expected.dtype
            assert (
                tensor.reshape(-1).view(torch.uint8).tolist()
                == expected.reshape(-1).view(torch.uint8).tolist()
            )


def test_ranks_that_are_not_alike_are_named_with_their_hosts():
    ranks = join_all(2)
    facts = [{"pagewire": "1.0"}, {"pagewire": "1.1"}]
    for found in on_each(lambda rank: ranks[rank].check_equal(facts[rank], "ab"[rank])):
        assert isinstance(found, StartupError)
        assert found.why == "pagewire: rank 0 on a has 1.0, rank 1 on b has 1.1"


def test_a_wait_ends_with_the_core():
    """In an exchange, before a step, and before all ranks are here; and no group is adopted."""
    lost: list[bool] = []
    first, other = join_all(2, lambda: bool(lost))
    first.begin_step()
    with pytest.raises(RankGone, match="rank 0 of the worker ends with its engine core"):
        first.leave_core()
    lost.append(True)
    with pytest.raises(RankGone, match="rank 0 of the worker ends with its engine core"):
        first.check_equal({})
    with pytest.raises(EngineGone):
        first.begin_step()
    assert first._meeting.abandoned is not None, "its destructor would wait for the exchange"
    lost.clear()
    other.check_equal({})
    assert other._meeting.abandoned is None
    meeting = Meeting(0, "127.0.0.1", lambda: True)
    with pytest.raises(RankGone, match="ends with its engine core"):
        join_hosts(Initialize(tensor_parallel_size=2, group_name="test"), 0, meeting, ignore)


def test_no_wait_is_without_an_end(monkeypatch: pytest.MonkeyPatch):
    first, other = join_all(2)
    monkeypatch.setattr(rank_peers, "DEADLINE_S", 0.0)
    with pytest.raises(RankGone, match="rank 0 of the worker has waited 0 s for other ranks"):
        first.check_equal({})
    monkeypatch.undo()
    other.check_equal({})
    monkeypatch.setattr(rank_hosts, "JOIN_S", 0.0)
    meeting = Meeting(0, "127.0.0.1", never)
    with pytest.raises(RankGone, match="rank 0 of the worker has waited 0 s for rank 1"):
        join_hosts(Initialize(tensor_parallel_size=2, group_name="test"), 0, meeting, ignore)


def test_a_wait_is_reported_while_ranks_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_peers, "_REPORT_S", 0.0)
    reports: list[str] = []
    lost: list[bool] = []

    def report(what: str, fraction: float) -> None:
        reports.append(what)
        lost.append(True)

    first, other = join_all(2, lambda: bool(lost))
    first.on_wait = report
    with pytest.raises(RankGone):
        first.check_equal({})
    lost.clear()
    other.check_equal({})
    assert reports == ["other ranks"]


def test_a_store_that_cannot_be_reached_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_hosts, "_CONNECT", rank_hosts.timedelta(seconds=1))
    meeting = Meeting(1, "127.0.0.1", never)
    initialize = Initialize(tensor_parallel_size=2, group_name="test", store_port=1)
    with pytest.raises(StartupError) as raised:
        join_hosts(initialize, 1, meeting, ignore)
    assert raised.value.why.startswith(f"rank 1 on {meeting.host} cannot connect to the others: ")
    assert "\n" not in raised.value.why


def be_rank(rank: int, port: int) -> None:
    """A process that is rank 2, or rank 1, which dies instead of an exchange."""
    initialize = Initialize(tensor_parallel_size=3, group_name="test", store_port=port)
    ranks = join_hosts(initialize, rank, Meeting(rank, "127.0.0.1", never), ignore)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(RankGone):
        ranks.check_equal({})


def test_a_rank_that_is_killed_ends_the_exchange_of_the_others():
    processes, meeting = multiprocessing.get_context("spawn"), Meeting(0, "127.0.0.1", never)
    others = [processes.Process(target=be_rank, args=(rank, meeting.port)) for rank in (1, 2)]
    for each in others:
        each.start()
    ranks = join_hosts(Initialize(tensor_parallel_size=3, group_name="test"), 0, meeting, ignore)
    with pytest.raises(RankGone, match="rank 0 of the worker has lost another one: "):
        ranks.check_equal({})
    for each in others:
        each.join()
    assert [each.exitcode for each in others] == [-signal.SIGKILL, 0]
