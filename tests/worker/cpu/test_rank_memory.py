"""Ranks find one another, and no wait of theirs is without an end."""

import errno
import gc
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.cpu.runtime.rank_link import RankLink
from pagewire.errors import StartupError
from pagewire.internal.v1.worker_pb2 import Initialize
from tests.kernels.cpu.runtime.test_rank_exchange import exchange
from tests.patience import PATIENCE_S
from worker.channel import EngineGone
from worker.cpu import rank_memory, rank_peers
from worker.cpu.rank_group import ProcessGroup, make_groups
from worker.cpu.rank_memory import Ranks, join, model_digest
from worker.loop import RankGone

pytestmark = pytest.mark.cpu_kernels


def ignore(what: str, fraction: float) -> None:
    """Nothing wants to know."""


def make_ranks(size: int = 2) -> list[Ranks]:
    memory = mmap.mmap(-1, RankLink.num_bytes(size))
    return [Ranks(RankLink(memory, rank, size), ignore) for rank in range(size)]


def on_each(work: Callable[[int], object], size: int = 2) -> list[object]:
    """What each rank's thread returns or raises."""
    found: dict[int, object] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def command(size: int = 2, name: str = "test") -> Initialize:
    return Initialize(tensor_parallel_size=size, group_name=name, first_rank_pid=os.getpid())


def names_of_memory() -> list[str]:
    gc.collect()  # compiling in the middle of a call leaves cycles that hold its frames
    links = []
    for file in os.scandir("/proc/self/fd"):
        try:
            links.append(os.readlink(file))
        except FileNotFoundError:
            continue
    return [link for link in links if "pagewire-ranks" in link]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_join_and_gather(size: int):
    """What is left of the memory has no name, so that nothing stays behind, however the ranks end."""

    def work(rank: int) -> object:
        group = ProcessGroup(rank, size, ranks=join(command(size, f"gather-{size}"), rank, ignore))
        parts = group.gather(torch.arange(6, dtype=torch.float32).reshape(2, 3).T + rank)
        total = group.sum(torch.full((3,), float(rank)))
        first = group.from_first(torch.tensor([rank])).tolist(), group.ranks.of_first(rank + 7)
        return torch.stack(list(parts)), total, group.least(10 - rank), first

    expected = torch.stack([torch.arange(6.0).reshape(2, 3).T + rank for rank in range(size)])
    for found in on_each(work, size):
        assert isinstance(found, tuple), found
        parts, total, least, first = found
        assert torch.equal(parts, expected)
        assert total.tolist() == [sum(range(size))] * 3
        assert (least, first) == (11 - size, ([0], 7))
    assert not names_of_memory()


def test_the_end_of_a_peer_is_noticed_and_named():
    ranks, _ = make_ranks()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as peer:
        ranks.watch(1, peer.pid)
        peer.kill()
        with pytest.raises(RankGone, match="rank 1 of the worker is gone, and rank 0 ends with it"):
            ranks.exchange(0, 0, 0)
        with pytest.raises(RankGone, match="rank 1"):
            ranks.begin_step()
        with pytest.raises(RankGone, match="rank 1"):
            ranks.leave_core()
    with pytest.raises(RankGone, match="rank 1"):
        ranks.watch(1, peer.pid)


def test_a_program_that_has_failed_says_why():
    """Whether a peer has ended, or has given up."""
    own, found = torch.ones(1, 8, dtype=torch.uint8), torch.zeros(2, 8, dtype=torch.uint8)
    ranks, _ = make_ranks()
    ranks.link.check()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as peer:
        ranks.watch(1, peer.pid)
        peer.kill()
        exchange(ranks.link, own, found, 2, 8)
        with pytest.raises(RankGone, match="rank 1 of the worker is gone, and rank 0 ends with it"):
            ranks.link.check()
    first, other = make_ranks()
    other.abort()
    exchange(first.link, own, found, 2, 8)
    with pytest.raises(RankGone, match="rank 1 of the worker has failed"):
        first.link.check()


def test_a_rank_that_fails_ends_the_wait_of_the_others():
    first, other = make_ranks()
    other.abort()
    with pytest.raises(RankGone, match="rank 1 of the worker has failed, and rank 0 ends with it"):
        first.exchange(0, 0, 0)


def test_no_wait_is_without_an_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_peers, "DEADLINE_S", 0.0)
    ranks, _ = make_ranks()
    with pytest.raises(RankGone, match="rank 0 of the worker has waited 0 s for rank 1"):
        ranks.exchange(0, 0, 0)


def test_a_wait_is_reported_while_ranks_load(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_peers, "_REPORT_S", 0.0)
    first, other = make_ranks()
    reports: list[str] = []

    def report(what: str, fraction: float) -> None:
        reports.append(what)
        other.abort()

    first.on_wait = report
    with pytest.raises(RankGone):
        first.exchange(0, 0, 0)
    assert reports == ["rank 1"]


def test_a_step_that_not_all_ranks_have_is_begun_by_none():
    """And the next core's steps are in order again."""
    ranks = make_ranks()
    assert on_each(lambda rank: ranks[rank].begin_step()) == [None, None]

    def lose_the_core(rank: int) -> bool:
        """Rank 0 has one plan more."""
        dropped = False
        if rank == 0:
            with pytest.raises(EngineGone):
                ranks[0].begin_step()
            dropped = True
        ranks[rank].leave_core()
        return dropped

    assert on_each(lose_the_core) == [True, False]
    assert on_each(lambda rank: ranks[rank].begin_step()) == [None, None]


def test_a_micro_batch_begins_while_others_compute():
    """As soon as all ranks have its plan. One that some have alone is dropped when the core is lost."""
    first, other = make_ranks()
    for rank in (first, other):
        rank.announce_plan()
    first.begin_step(micro_batch=True)  # the other one has begun none
    first.announce_plan()

    def go_on(rank: int) -> None:
        if rank == 0:
            with pytest.raises(EngineGone):
                first.begin_step(micro_batch=True)
        else:
            other.begin_step(micro_batch=True)
        (first, other)[rank].leave_core()

    assert on_each(go_on) == [None, None]
    for rank in (first, other):
        rank.announce_plan()
    first.begin_step(micro_batch=True)


def test_what_is_sent_begins_anew_with_the_next_core():
    """Whatever the last one has left under way."""
    memory, members = mmap.mmap(-1, 2 * RankLink.num_bytes(2)), (0, 1)
    ranks = [Ranks(RankLink(memory, rank, 2), ignore) for rank in members]
    for rank in ranks:
        rank.make_parts([members])
    first, other = (rank.parts[members] for rank in ranks)
    x, found = torch.ones(4), torch.zeros(4)
    first.send(x.data_ptr(), x.nbytes)
    assert other.has_arrived()
    assert on_each(lambda rank: ranks[rank].leave_core()) == [None, None]
    assert not other.has_arrived()
    for number in range(3):
        x.fill_(number)
        first.send(x.data_ptr(), x.nbytes)
        other.receive(found.data_ptr(), found.nbytes)
        assert torch.equal(x, found)


def test_ranks_that_are_not_alike_are_named():
    ranks = make_ranks(3)
    facts = [{"pagewire": "1.0", "dtype": each} for each in ("auto", "auto", "float32")]
    for found in on_each(lambda rank: ranks[rank].check_equal(facts[rank]), 3):
        assert isinstance(found, StartupError)
        assert found.what == "the ranks of the worker disagree"
        assert found.why == "dtype: rank 0 has auto, rank 2 has float32"
    assert on_each(lambda rank: ranks[rank].check_equal(facts[0]), 3) == [None] * 3


def test_no_memory_to_share(monkeypatch: pytest.MonkeyPatch):
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StartupError) as raised:
        join(command(), 0, ignore)
    assert raised.value.why.startswith("rank 0: there are no 4 MiB of memory that they could share: No space")
    assert not names_of_memory()


def test_memory_that_has_no_size_yet_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """Rank 0 makes it in two calls of the system."""
    waited = threading.Event()
    allocate = os.posix_fallocate

    def after_a_look(descriptor: int, offset: int, length: int) -> None:
        assert waited.wait(PATIENCE_S)
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", after_a_look)
    monkeypatch.setattr(rank_peers, "_REPORT_S", 0.0)
    found = on_each(lambda rank: join(command(name="slow"), rank, lambda what, fraction: waited.set()))
    assert all(isinstance(each, Ranks) for each in found), found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_named(rank: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_memory, "JOIN_S", 0.0)
    with pytest.raises(StartupError, match=("rank 1 has not come", r"rank 0 \(pid \d+\) has made no")[rank]):
        join(command(name=f"absent-{rank}"), rank, ignore)


def test_the_process_of_rank_0_is_not_here():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
        with pytest.raises(StartupError, match="cannot be opened"):
            join(Initialize(tensor_parallel_size=2, first_rank_pid=gone.pid), 1, ignore)


def test_the_digest_of_a_model_follows_its_files(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    digests = {model_digest(tmp_path)}
    (tmp_path / "config.json").write_text("{ }")
    digests.add(model_digest(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(bytes(101))
    digests |= {model_digest(tmp_path), model_digest(tmp_path / "model.safetensors")}
    assert len(digests) == 4
    assert model_digest(tmp_path) in digests


@pytest.mark.parametrize(("tensor", "stages"), [(1, 2), (1, 3), (2, 2)])
def test_stages_hand_over_in_a_ring(tensor: int, stages: int):
    """Each rank gets from the one of the same number in the stage before; those of a stage add alone."""
    size, starts = tensor * stages, tuple(range(stages + 1))

    def work(rank: int) -> object:
        order = command(tensor, f"stages-{tensor}-{stages}")
        order.pipeline_parallel_size = stages
        groups = make_groups(join(order, rank, ignore), tensor, starts)
        stage, own = groups.stage, torch.full((1, 3), float(rank))
        assert (stage.number, stage.layers) == (rank // tensor, slice(stage.number, stage.number + 1))
        if stage.is_first:
            stage.behind.gather(own)
        (came, _) = stage.before.gather(torch.empty(1, 3))
        if not stage.is_first:
            stage.behind.gather(own)
        return came.tolist(), groups.tensor.sum(torch.ones(1)).item(), groups.world.least(rank)

    assert on_each(work, size) == [([[float((rank - tensor) % size)] * 3], tensor, 0) for rank in range(size)]


def test_what_ends_the_group_ends_what_some_of_it_exchange():
    memory = mmap.mmap(-1, 3 * RankLink.num_bytes(3))
    ranks = [Ranks(RankLink(memory, rank, 3), ignore) for rank in range(3)]
    for each in ranks:
        each.make_parts([(0, 1), (1, 2)])
    ranks[0].abort()
    with pytest.raises(RankGone, match="rank 0 of the worker has failed, and rank 2 ends with it"):
        ranks[2].parts[1, 2].exchange(0, 0, 0)
