"""Exchanges of a program: here the ranks are threads of one process, each with a team of its own."""

import os
import subprocess
import sys

import pytest
import torch

from kernels.cpu.runtime.rank_link import RankLink
from kernels.cpu.runtime.records import ExchangeRowsRecord
from tests.kernels.cpu.runtime.test_rank_link import CAPACITY, links_of, on_each, wait

pytestmark = pytest.mark.cpu_kernels


def exchange(link: RankLink, own: torch.Tensor, found: torch.Tensor, parts: int, row_bytes: int) -> None:
    """As an operation of a program. own: [rows, bytes] uint8."""
    from kernels.cpu.runtime.rank_exchange import exchange_rows
    from kernels.cpu.runtime.thread_pool import Team

    record = ExchangeRowsRecord(
        exchange=link.address,
        source=own.data_ptr(),
        own_bytes=own.shape[1],
        row_bytes=row_bytes,
        num_rows=len(own),
        target=found.data_ptr(),
        stride=found.stride(0),
        parts=parts,
    )
    Team().run_one(exchange_rows, 1, record, 1)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("widths", [(3, 3), (CAPACITY, CAPACITY), (CAPACITY + 1, 5), (9, 2 * CAPACITY)])
def test_rows_of_all_ranks(size: int, widths: tuple[int, int]):
    """Also where ranks have rows of different widths, and parts are larger than a buffer; before and behind
    exchanges outside of programs."""
    row_bytes, rows = max(widths), 3

    def part(rank: int, turn: int) -> torch.Tensor:
        shape, generator = (rows, widths[rank % 2]), torch.manual_seed(rank + 10 * turn)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)

    parts = [[part(rank, turn) for rank in range(size)] for turn in range(10)]

    def work(link: RankLink) -> None:
        for turn, expected in enumerate(parts):
            found = torch.zeros(size, rows * row_bytes, dtype=torch.uint8)
            exchange(link, expected[link.rank], found, size, row_bytes)
            for rank, rows_of_rank in enumerate(expected):
                flat = rows_of_rank.flatten()
                assert torch.equal(found[rank, : len(flat)], flat), (turn, rank)
            link.exchange(0, 0, 0, wait)
        link.check()

    on_each(links_of(size), work)


def test_all_ranks_get_the_rows_of_rank_0():
    def work(link: RankLink) -> None:
        x = torch.full((4, 8), link.rank, dtype=torch.uint8)
        exchange(link, x, x[None], 1, 8)
        assert not x.any()

    on_each(links_of(2), work)


@pytest.mark.parametrize("width", [3, CAPACITY, 2 * CAPACITY + 1])
def test_programs_send_what_others_receive(width: int):
    """As operations of programs, and without."""
    from kernels.cpu.runtime.rank_exchange import receive_rows, send_rows
    from kernels.cpu.runtime.thread_pool import Team

    x = torch.randint(256, (3, width), dtype=torch.uint8)

    def work(link: RankLink) -> None:
        found = torch.zeros_like(x)
        record = ExchangeRowsRecord(
            exchange=link.address,
            source=x.data_ptr(),
            own_bytes=width,
            row_bytes=width,
            num_rows=len(x),
            target=found.data_ptr(),
            stride=0,
            parts=1,
        )
        for turn in range(6):
            found.zero_()
            if link.rank == 0:
                Team().run_one(send_rows, 1, record, 1)
            elif turn % 2:
                link.receive(found.data_ptr(), x.numel(), wait)
            else:
                Team().run_one(receive_rows, 1, record, 1)
            assert link.rank == 0 or torch.equal(found, x)
        link.check()

    on_each(links_of(2), work)


def failure(link: RankLink) -> None:
    """An exchange that fails writes nothing, and those behind it do not wait."""
    own, found = torch.ones(1, 8, dtype=torch.uint8), torch.zeros(2, 8, dtype=torch.uint8)
    for _ in range(2):
        exchange(link, own, found, 2, 8)
    assert not found.any()
    with pytest.raises(ConnectionError, match=f"rank {1 - link.rank} has ended, or has not come"):
        link.check()
    named: list[int] = []
    link.on_failure = named.append
    link.check()
    assert named == [1 - link.rank]


def test_a_peer_that_has_ended_is_not_waited_for():
    _, other = links_of(2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as peer:
        descriptor = os.pidfd_open(peer.pid)
        other.watch(descriptor)
        peer.kill()
        failure(other)
    os.close(descriptor)


def test_a_peer_that_gives_up_is_not_waited_for():
    first, other = links_of(2)
    other.abort()
    failure(first)


def test_no_wait_is_without_an_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RankLink, "DEADLINE_S", 0.0)
    failure(links_of(2)[0])
