"""Ranks exchange bytes through memory that they share: here, threads of one process."""

import mmap
import threading
from collections.abc import Callable

import pytest
import torch

from kernels.cpu.runtime.plain_rank_exchange import PlainExchange
from kernels.cpu.runtime.rank_link import RankLink

CAPACITY = 4096
Make = Callable[[int], list[RankLink]]


def wait(rank: int) -> None:
    """The other one comes."""


def links_of(size: int, kind: str = "compiled") -> list[RankLink]:
    """The ends of so many ranks. kind: how they exchange."""
    memory = mmap.mmap(-1, RankLink.num_bytes(size, CAPACITY))
    plain = {
        "compiled": [False] * size,
        "plain": [True] * size,
        "both": [rank % 2 == 1 for rank in range(size)],
    }
    return [
        RankLink(memory, rank, size, CAPACITY, PlainExchange() if is_plain else None)
        for rank, is_plain in enumerate(plain[kind])
    ]


@pytest.fixture(
    params=[
        pytest.param("compiled", marks=pytest.mark.cpu_kernels),
        "plain",
        pytest.param("both", marks=pytest.mark.cpu_kernels),
    ]
)
def make_links(request: pytest.FixtureRequest) -> Make:
    """The ends of so many ranks, which exchange by compiled code, without, or every other one of them."""
    return lambda size: links_of(size, request.param)


def on_each(links: list[RankLink], work: Callable[[RankLink], None]) -> None:
    errors: list[BaseException] = []

    def run(link: RankLink) -> None:
        try:
            work(link)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("count", [0, 1, CAPACITY - 1, CAPACITY, 3 * CAPACITY + 5])
def test_each_rank_gets_the_parts_of_all(size: int, count: int, make_links: Make):
    """In exchange after exchange, also where a part is larger than a buffer."""

    def part(rank: int, turn: int) -> torch.Tensor:
        return torch.randint(256, (count,), dtype=torch.uint8, generator=torch.manual_seed(rank + 10 * turn))

    expected = [[part(rank, turn) for rank in range(size)] for turn in range(20)]

    def work(link: RankLink) -> None:
        for turn in range(20):
            found = torch.zeros(size, count, dtype=torch.uint8)
            link.exchange(expected[turn][link.rank].data_ptr(), count, found.data_ptr(), wait)
            assert torch.equal(found, torch.stack(expected[turn])), turn

    on_each(make_links(size), work)


def test_a_missing_rank_is_named_and_what_that_raises_ends_the_wait(make_links: Make):
    first, *_ = make_links(4)
    named: list[int] = []

    def give_up(rank: int) -> None:
        named.append(rank)
        if len(named) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        first.exchange(0, 0, 0, give_up)
    assert named == [1, 1, 1]


def test_an_exchange_that_one_rank_never_begins_is_forgotten_with_its_epoch(make_links: Make):
    first, other = make_links(2)

    def leave(rank: int) -> None:
        if first.has_left(rank):
            raise EOFError
        other.end_epoch()

    with pytest.raises(EOFError):
        first.exchange(0, 0, 0, leave)
    assert first.begin_epoch() == other.begin_epoch() == 0, "the first rank has not left"
    first.end_epoch()
    assert first.begin_epoch() == other.begin_epoch() == -1
    assert not first.has_left(1)
    on_each([first, other], lambda link: link.exchange(0, 0, 0, wait))


def test_a_rank_that_has_left_behind_the_exchange_is_not_missed(make_links: Make):
    first, other = make_links(2)
    on_each([first, other], lambda link: link.exchange(0, 0, 0, wait))
    other.end_epoch()
    assert not first.has_left(1)


def test_what_a_rank_says_of_itself(make_links: Make):
    first, other = make_links(2)
    assert (other.pid_of(0), other.aborting_rank) == (0, -1)
    first.tell_pid(1234)
    assert (other.pid_of(0), other.pid_of(1)) == (1234, 0)
    other.abort()
    assert first.aborting_rank == other.aborting_rank == 1


@pytest.mark.parametrize("count", [1, CAPACITY, 2 * CAPACITY, 3 * CAPACITY + 5])
def test_what_is_sent_arrives_in_order(count: int, make_links: Make):
    """Two buffers at once; beyond that, the rank that sends waits."""
    parts = [torch.randint(256, (count,), dtype=torch.uint8) for _ in range(6)]

    def work(link: RankLink) -> None:
        for part in parts:
            if link.rank == 0:
                link.send(part.data_ptr(), count, wait)
            else:
                found = torch.zeros(count, dtype=torch.uint8)
                link.receive(found.data_ptr(), count, wait)
                assert torch.equal(found, part)

    on_each(make_links(2), work)


def test_two_buffers_are_sent_before_any_is_taken(make_links: Make):
    first, other = make_links(2)
    part, found = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    assert not other.has_arrived
    for _ in range(2):
        first.send(part.data_ptr(), 8, wait)

    def end(rank: int) -> None:
        raise ConnectionError(f"rank {rank} does not come")

    with pytest.raises(ConnectionError, match="rank 1 does not come"):
        first.send(part.data_ptr(), 8, end)
    for _ in range(2):
        assert other.has_arrived
        other.receive(found.data_ptr(), 8, wait)
    assert torch.equal(found, part) and not other.has_arrived
